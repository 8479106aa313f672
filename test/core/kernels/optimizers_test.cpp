// The kernels of Lion and Muon against plain loops in float64; an element's bits do not depend on its place.
#include "core/kernels/kernels.h"

#include <ATen/Parallel.h>

#include <cmath>
#include <limits>

#include "core/base/error.h"
#include "core/kernels/dry_run.h"
#include "test/core/kernels/compare.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

using namespace pptrain;
using namespace pptrain::test;
using at::Tensor;
using kernels::Cost;

namespace {

const auto float32 = at::TensorOptions().dtype(at::kFloat);
const std::optional<Tensor> none;

struct Values {
  explicit Values(int64_t size) {
    at::manual_seed(test::seed(9));
    weight = at::randn({size}, float32);
    grad = at::randn({size}, float32);
    average = at::randn({size}, float32);
    rounded = at::empty({size}, at::kBFloat16);
  }
  Tensor weight, grad, average, rounded;
};

Tensor one(const Tensor& x, int64_t i) {
  return x.narrow(0, i, 1).clone();
}

}  // namespace

TEST_CASE("lion is the paper's formula, element by element", "[kernels]") {
  const int64_t threads = GENERATE(1, 2), size = GENERATE(1, 7, 203, 70001);
  at::set_num_threads(static_cast<int>(threads));
  Values v(size);
  const kernels::StepArgs args{
      .lr = 1e-2, .beta1 = 0.8, .beta2 = 0.95, .weight_decay = 0.3, .grad_scale = 0.5};
  const Tensor g = v.grad.to(at::kDouble) * 0.5, m = v.average.to(at::kDouble), w = v.weight.to(at::kDouble);
  const Tensor before_weight = v.weight.clone(), before_average = v.average.clone();
  const kernels::StepPrevious previous{at::empty_like(v.weight), at::empty_like(v.weight), {}};
  Tensor weight = v.weight.clone(), average = v.average.clone();
  kernels::lion({{v.weight, v.grad, v.average, {}, v.rounded, args, previous}});
  constexpr double rounding = 8 * 0x1p-24;  // in products, sums and factors
  const Tensor direction = (m * 0.8 + g * 0.2).sign();
  CHECK(largest((v.weight - (w * (1 - 1e-2 * 0.3) - 1e-2 * direction)) / (1 + w.abs())) < rounding);
  CHECK(largest((v.average - (m * 0.95 + g * 0.05)) / (1 + m.abs() + g.abs())) < rounding);
  CHECK(same_bits(v.rounded, v.weight.to(at::kBFloat16)));
  CHECK(same_bits(previous.weight, before_weight));
  CHECK(same_bits(previous.exp_avg, before_average));
  kernels::lion({{weight, v.grad, average, {}, none, args, std::nullopt}});
  CHECK(same_bits(weight, v.weight));
  CHECK(same_bits(average, v.average));
  at::set_num_threads(1);
}

TEST_CASE("lion does not move where its direction is zero or not a number", "[kernels]") {
  Tensor weight = at::ones({2}, float32), average = at::zeros({2}, float32);
  const Tensor grad = at::tensor({0.0F, std::numeric_limits<float>::quiet_NaN()});
  kernels::lion({{weight, grad, average, {}, none, {.lr = 0.5}, std::nullopt}});
  CHECK(same_bits(weight, at::ones({2}, float32)));
  CHECK(std::isnan(average[1].item<float>()));
}

TEST_CASE("momentum and descend are what they say, also in place and rounded", "[kernels]") {
  const int64_t threads = GENERATE(1, 2), size = GENERATE(1, 7, 203, 70001);
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  at::set_num_threads(static_cast<int>(threads));
  Values v(size);
  Tensor next = at::empty({size}, type), exact = at::empty({size}, float32);
  kernels::momentum(v.average, v.grad, next, /*beta=*/0.9, /*grad_scale=*/2);
  kernels::momentum(v.average, v.grad, exact, /*beta=*/0.9, /*grad_scale=*/2);
  const Tensor expected = v.average.to(at::kDouble) * 0.9 + v.grad.to(at::kDouble) * 0.2;
  CHECK(largest(exact - expected) < 1e-6);
  CHECK(same_bits(next, exact.to(type)));
  kernels::momentum(v.average, v.grad, v.average, /*beta=*/0.9, /*grad_scale=*/2);
  CHECK(same_bits(v.average, exact));

  const Tensor moved = v.weight.to(at::kDouble) * 0.7 - 0.02 * next.to(at::kDouble);
  kernels::descend(v.weight, next, v.rounded, /*decay=*/0.7, /*step=*/0.02);
  CHECK(largest(v.weight - moved) < 1e-6);
  CHECK(same_bits(v.rounded, v.weight.to(at::kBFloat16)));
  at::set_num_threads(1);
}

TEST_CASE("the kernels of lion and muon do not depend on where an element lies", "[kernels]") {
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  at::set_num_threads(1);
  const Values start(203);
  Values v(203);
  Tensor next = at::empty({203}, type);
  const kernels::StepArgs lion{.lr = 1e-2, .beta2 = 0.99, .weight_decay = 0.1, .grad_scale = 0.3};
  kernels::lion({{v.weight, v.grad, v.average, {}, v.rounded, lion, std::nullopt}});
  kernels::momentum(v.average, v.grad, next, /*beta=*/0.95, /*grad_scale=*/0.3);
  kernels::descend(v.weight, next, v.rounded, /*decay=*/0.9, /*step=*/0.3);
  for (int64_t i = 0; i < 203; ++i) {
    Tensor weight = one(start.weight, i), average = one(start.average, i), part = at::empty({1}, type);
    Tensor rounded = at::empty({1}, at::kBFloat16);
    const Tensor grad = one(start.grad, i);
    kernels::lion({{weight, grad, average, {}, rounded, lion, std::nullopt}});
    kernels::momentum(average, grad, part, /*beta=*/0.95, /*grad_scale=*/0.3);
    kernels::descend(weight, part, rounded, /*decay=*/0.9, /*step=*/0.3);
    REQUIRE(same_bits(weight, v.weight.narrow(0, i, 1)));
    REQUIRE(same_bits(average, v.average.narrow(0, i, 1)));
    REQUIRE(same_bits(part, next.narrow(0, i, 1)));
    REQUIRE(same_bits(rounded, v.rounded.narrow(0, i, 1)));
  }
}

TEST_CASE("the kernels of lion and muon record what they move, and refuse other sizes", "[kernels]") {
  const auto meta = [](int64_t size, at::ScalarType type = at::kFloat) {
    return at::empty({size}, at::TensorOptions().device(at::kMeta).dtype(type));
  };
  Tensor weight = meta(100), average = meta(100), rounded = meta(100, at::kBFloat16), wrong = meta(99);
  const Tensor grad = meta(100);
  const kernels::StepPrevious previous{meta(100), meta(100), {}};
  const kernels::DryRun run;
  const auto moved = [&](const auto& call) {
    const Cost before = run.cost();
    call();
    return (run.cost() - before).bytes;
  };
  CHECK(moved([&] { kernels::lion({{weight, grad, average, {}, none, {}, std::nullopt}}); }) == 5 * 400);
  CHECK(moved([&] { kernels::lion({{weight, grad, average, {}, rounded, {}, previous}}); }) == 7 * 400 + 200);
  CHECK(moved([&] { kernels::momentum(average, grad, rounded, 0.95, 1); }) == 2 * 400 + 200);
  CHECK(moved([&] { kernels::descend(weight, rounded, none, 1, 0); }) == 2 * 400 + 200);
  CHECK_THROWS_WITH(kernels::momentum(average, grad, wrong, 0.95, 1), contains_text("kernel momentum: next"));
  CHECK_THROWS_WITH(kernels::descend(wrong, rounded, none, 1, 0), contains_text("kernel descend: direction"));
  CHECK_THROWS_WITH(kernels::lion({{weight, grad, wrong, {}, none, {}, std::nullopt}}),
                    contains_text("kernel lion: exp_avg"));
}

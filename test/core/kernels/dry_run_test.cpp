// Dry runs: the records of each kernel on meta tensors against a count by hand, and the memory of meta
// tensors against the sum of their storages.
#include "core/kernels/dry_run.h"

#include <c10/core/InferenceMode.h>

#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "core/base/error.h"
#include "core/kernels/expert_kernels.h"
#include "core/kernels/fp8_kernels.h"
#include "core/kernels/kernels.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

using namespace pptrain;
using namespace pptrain::test;
using at::Tensor;
using kernels::Cost;
using kernels::DryRun;

namespace {

Tensor meta(at::IntArrayRef shape, at::ScalarType type = at::kFloat) {
  return at::empty(shape, at::TensorOptions().dtype(type).device(at::kMeta));
}

Cost cost_of(const std::function<void()>& work) {
  const DryRun run;
  work();
  return run.cost();
}

Cost moved(double bytes) {
  return {.bytes = bytes, .kernels = 1};
}

constexpr double dry_eps = 1e-5;
const std::optional<Tensor> no_tensor;

}  // namespace

TEST_CASE("norms and activations record their arguments' bytes", "[dry_run]") {
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const double t = type == at::kFloat ? 4 : 2;  // bytes of an activation
  const Tensor x = meta({6, 10}, type), weight = meta({10}), rstd = meta({6}), wide = meta({6, 20}, type);
  Tensor y = meta({6, 10}, type), out = rstd, grad = meta({10}), dwide = meta({6, 20}, type);
  CHECK(cost_of([&] { kernels::rms_norm(x, weight, dry_eps, y, out); }) == moved(2 * 60 * t + 40 + 24));
  CHECK(cost_of([&] { kernels::add_rms_norm(x, x, weight, dry_eps, y, y, out); }) ==
        moved(4 * 60 * t + 40 + 24));
  // The weight's gradient is read and written.
  CHECK(cost_of([&] { kernels::rms_norm_backward(x, x, weight, rstd, no_tensor, y, grad); }) ==
        moved(3 * 60 * t + 40 + 24 + 2 * 40));
  CHECK(cost_of([&] { kernels::rms_norm_backward(x, x, weight, rstd, x, y, grad); }) ==
        moved(4 * 60 * t + 40 + 24 + 2 * 40));
  CHECK(cost_of([&] { kernels::swiglu(wide, y); }) == moved((120 + 60) * t));
  CHECK(cost_of([&] { kernels::swiglu_backward(x, wide, dwide, no_tensor); }) == moved((60 + 120 + 120) * t));
  CHECK(cost_of([&] { kernels::swiglu_backward(x, wide, dwide, y); }) == moved((2 * 60 + 120 + 120) * t));
}

TEST_CASE("products record operations, and the weights they read apart", "[dry_run]") {
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const double t = type == at::kFloat ? 4 : 2;
  const double flops = 2 * 6 * 10 * 20;
  const Tensor x = meta({6, 10}, type), weight = meta({20, 10}, type), bias = meta({20}, type),
               dy = meta({6, 20}, type);
  Tensor y = meta({6, 20}, type), dx = meta({6, 10}, type), grad = meta({20, 10}), bias_grad = meta({20});
  const double operands = (60 + 200 + 120) * t;
  CHECK(cost_of([&] { kernels::linear(x, weight, no_tensor, y); }) ==
        Cost{.product_flops = flops, .bytes = operands, .weight_bytes = 200 * t, .kernels = 1});
  CHECK(cost_of([&] { kernels::linear(x, weight, bias, y); }) ==
        Cost{.product_flops = flops, .bytes = operands + 20 * t, .weight_bytes = 200 * t, .kernels = 1});
  CHECK(cost_of([&] { kernels::matmul(dy, weight, dx); }) ==
        Cost{.product_flops = flops, .bytes = operands, .weight_bytes = 200 * t, .kernels = 1});
  // The float32 gradient is read and written; no weights are read.
  CHECK(cost_of([&] { kernels::accumulate_weight_gradient(dy, x, grad); }) ==
        Cost{.product_flops = flops, .bytes = (120 + 60) * t + 2 * 200 * 4, .kernels = 1});
  CHECK(cost_of([&] { kernels::weight_gradient(dy, x, grad); }) ==
        Cost{.product_flops = flops, .bytes = (120 + 60) * t + 200 * 4, .kernels = 1});
  CHECK(cost_of([&] { kernels::accumulate_bias_gradient(dy, bias_grad); }) == moved(120 * t + 2 * 20 * 4));
}

TEST_CASE("embedding and cross entropy record what they touch", "[dry_run]") {
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const double t = type == at::kFloat ? 4 : 2;
  const Tensor tokens = meta({6}, at::kLong), table = meta({1000, 10}, type);
  Tensor out = meta({6, 10}, type), table_grad = meta({1000, 10}), logits = meta({6, 1000}, type),
         loss = meta({6});
  CHECK(cost_of([&] { kernels::embedding(tokens, table, {.first = 0, .vocab = 1000}, out); }) ==
        moved(48 + 2 * 60 * t));
  CHECK(cost_of([&] { kernels::embedding_backward(tokens, out, {.first = 0, .vocab = 1000}, table_grad); }) ==
        moved(48 + 60 * t + 2 * 60 * 4));
  CHECK(cost_of([&] { kernels::cross_entropy(logits, tokens, loss, false); }) == moved(6000 * t + 48 + 24));
  CHECK(cost_of([&] { kernels::cross_entropy(logits, tokens, loss, true); }) ==
        moved(2 * 6000 * t + 48 + 24));
}

TEST_CASE("norm_rope records rows of the tables, not the tables", "[dry_run]") {
  const Tensor positions = meta({6}, at::kInt), weight = meta({8});
  const Tensor fused = meta({6, 7, 8}, at::kBFloat16);
  const Tensor x = fused.narrow(1, 1, 5);  // 240 elements
  const kernels::RopeTable table{.cos = meta({4096, 4}), .sin = meta({4096, 4})};
  const Tensor y = meta({6, 5, 8}, at::kBFloat16), rstd = meta({6, 5}), weight_grad = meta({8});
  const double angles = 6 * 4 + 6 * 2 * 4 * 4;  // positions, and a row of cos and sin for each
  const auto forward = [&](const std::vector<kernels::HeadsPart>& parts) {
    return cost_of([&] { kernels::norm_rope(parts, dry_eps, table, positions); });
  };
  const auto backward = [&](const std::vector<kernels::HeadsGradient>& parts) {
    return cost_of([&] { kernels::norm_rope_backward(parts, table, positions); });
  };
  CHECK(forward({{.x = x, .y = y}}) == moved(2 * 480 + angles));
  CHECK(backward({{.dy = y, .dx = y}}) == moved(2 * 480 + angles));

  const kernels::HeadsPart normed{.x = x, .y = y, .weight = weight, .rstd = rstd};
  const kernels::HeadsGradient gradient{
      .dy = y, .dx = y, .x = x, .weight = weight, .rstd = rstd, .weight_grad = weight_grad};
  const double once = 2 * 480 + 32 + 120, back = 3 * 480 + 32 + 120 + 2 * 32;
  CHECK(forward({normed}) == moved(once + angles));
  CHECK(backward({gradient}) == moved(back + angles));
  // Two parts are one launch that reads the angles once.
  CHECK(forward({normed, normed}) == moved(2 * once + angles));
  CHECK(backward({gradient, gradient}) == moved(2 * back + angles));
}

TEST_CASE("the optimizer's kernels record what they read and write", "[dry_run]") {
  Tensor weight = meta({100}), exp_avg = meta({100}), exp_avg_sq = meta({100});
  const Tensor grad = meta({100}), compute = meta({100}, at::kBFloat16);
  Tensor sum = meta({20}, at::kLong);
  const kernels::StepPrevious previous{meta({100}), meta({100}), meta({100})};
  const auto step = [&](const std::optional<Tensor>& copy, const std::optional<kernels::StepPrevious>& kept) {
    return cost_of([&] { kernels::adamw({{weight, grad, exp_avg, exp_avg_sq, copy, {.lr = 1}, kept}}); });
  };
  CHECK(step(no_tensor, std::nullopt) == moved(7 * 400));
  CHECK(step(compute, previous) == moved(7 * 400 + 200 + 3 * 400));
  CHECK(cost_of([&] { kernels::add_squares({{grad, 0}}, sum); }) == moved(400 + 160));
  CHECK(cost_of([&] { kernels::add_squares({{grad, 0}, {weight, 0}}, sum); }) == moved(2 * 400 + 160));
  CHECK(cost_of([&] { kernels::normal_values(weight, 1, 0, 1); }) == moved(400));
}

TEST_CASE("a weight gradient in FP8 records its GEMM, and what it widens and turns", "[dry_run]") {
  const Tensor a = meta({32, 10}, at::kFloat8_e4m3fn), b = meta({48, 10}, at::kFloat8_e4m3fn);
  const Tensor a_scales = meta({32}), b_scales = meta({48});
  Tensor grad = meta({32, 48});
  const auto cost = [&](bool adds) {
    return cost_of([&] { kernels::fp8_weight_gradient(a, a_scales, b, b_scales, adds, grad); });
  };
  const double operands = 320 + 480 + 4 * 80, gradient = 4 * 32 * 48, turned = 2 * 4 * 800;
  CHECK(cost(false).bytes == operands + gradient + turned);
  CHECK(cost(true).bytes == operands + 2 * gradient + turned);
  CHECK(cost(true).product_flops == 2.0 * 32 * 48 * 10);
}

TEST_CASE("a dry run checks arguments, and kernels refuse meta tensors outside of one", "[dry_run]") {
  const Tensor wide = meta({6, 20});
  Tensor y = meta({6, 10}), wrong = meta({6, 9}), real = at::empty({6, 10});
  CHECK_THROWS_WITH(kernels::swiglu(wide, y),
                    contains_text("no back end for device meta outside of a dry run"));
  const DryRun run;
  CHECK_THROWS_WITH(kernels::swiglu(wide, wrong), contains_text("kernel swiglu: gate_up"));
  CHECK_THROWS_AS(kernels::swiglu(wide, real), Error);
  CHECK(run.cost() == Cost{});
  CHECK(kernels::is_dry(wide));
  CHECK_FALSE(kernels::is_dry(real));
  CHECK_FALSE(kernels::is_dry(Tensor()));
}

TEST_CASE("costs of one thread add up in its innermost dry run", "[dry_run]") {
  const Cost attention{.attention_flops = 5, .bytes = 7, .kernels = 2};
  kernels::record(attention);  // outside a dry run
  const DryRun outer;
  const Tensor wide = meta({6, 20});
  Tensor y = meta({6, 10});
  kernels::swiglu(wide, y);
  kernels::record(attention);
  const Cost before = outer.cost();
  CHECK(before == moved(720) + attention);
  {
    const DryRun inner;
    kernels::swiglu(wide, y);
    CHECK(inner.cost() == moved(720));
  }
  std::thread([&] {
    kernels::record(attention);
    const DryRun elsewhere;
    kernels::record(attention);
    CHECK(elsewhere.cost() == attention);
  }).join();
  CHECK(outer.cost() == before);
  kernels::swiglu(wide, y);
  CHECK(outer.cost() - before == moved(720));
}

TEST_CASE("meta tensors count as much as their storages, from making to end", "[dry_run]") {
  const bool inference = GENERATE(false, true);
  const c10::InferenceMode mode(inference);
  const auto options = at::TensorOptions().device(at::kMeta);
  const Tensor earlier = meta({1000});
  DryRun run;
  CHECK(run.current_bytes() == 0);
  std::vector<Tensor> all;
  const auto expected = [&] {
    int64_t bytes = 0;
    for (const Tensor& tensor : all) bytes += static_cast<int64_t>(tensor.storage().nbytes());
    return bytes;
  };
  const auto keep = [&](const Tensor& tensor, int64_t bytes) {
    all.push_back(tensor);
    CHECK(static_cast<int64_t>(tensor.storage().nbytes()) == bytes);
    CHECK(run.current_bytes() == expected());
  };
  keep(at::empty({3, 5}, options.dtype(at::kFloat)), 60);
  keep(at::zeros({3, 5}, options.dtype(at::kBFloat16)), 30);
  keep(at::empty_like(all[0]), 60);
  keep(at::empty_strided({2, 2}, {10, 1}, options.dtype(at::kFloat)), 48);
  keep(at::ones({3, 5}).to(at::kMeta), 60);
  keep(all[0].to(at::kDouble), 120);
  keep(all[0] + all[2], 60);
  keep(all[0].t().contiguous(), 60);
  keep(at::mm(all[0], all[2].t()), 36);
  keep(test::cat({all[0], all[2]}), 120);
  keep(all[0].sum(at::kDouble), 8);
  keep(at::empty({0}, options), 0);
  keep(earlier.clone(), 4000);
  const int64_t bytes = run.current_bytes();
  const Tensor view = all[0].narrow(0, 1, 2).view({10}), same = all[0];
  CHECK(run.current_bytes() == bytes);
  all[0] = Tensor();
  CHECK(run.current_bytes() == bytes);  // `same` and the view hold it
  CHECK(run.peak_bytes() == bytes);
  all.pop_back();
  CHECK(run.current_bytes() == bytes - 4000);
  CHECK(run.peak_bytes() == bytes);
  run.reset_peak();
  CHECK(run.peak_bytes() == bytes - 4000);
  meta({100});  // gone at once
  CHECK(run.peak_bytes() == bytes - 4000 + 400);
  CHECK(run.current_bytes() == bytes - 4000);
}

TEST_CASE("what a GPU's libraries take counts while the call lasts, and only on a GPU", "[dry_run]") {
  const bool gpu = GENERATE(false, true);
  const kernels::GpuKind kind =
      gpu ? kernels::GpuKind{.capability = 90, .multiprocessors = 132} : kernels::GpuKind{};
  const int64_t scratch = gpu ? 32 * 1024 * 1024 : 0;  // for cuBLAS
  const Tensor x = meta({6, 10}, at::kBFloat16), weight = meta({20, 10}, at::kBFloat16),
               grads = meta({3, 20, 10}), experts = meta({3, 20, 10}, at::kBFloat16),
               ends = meta({3}, at::kInt), order = meta({24}, at::kInt), dy = meta({24, 20}, at::kBFloat16);
  DryRun run(kind);
  CHECK(kernels::dry_gpu() == kind);
  Tensor y = meta({6, 20}, at::kBFloat16);
  kernels::linear(x, weight, no_tensor, y);
  CHECK(run.current_bytes() == 240);
  CHECK(run.peak_bytes() == 240 + scratch);
  run.reset_peak();
  Tensor dx = meta({6, 10}, at::kBFloat16), grad = meta({20, 10});
  kernels::matmul(y, weight, dx);
  CHECK(run.peak_bytes() == 240 + 120 + 800 + scratch);
  run.reset_peak();
  kernels::weight_gradient(y, x, grad);
  kernels::accumulate_weight_gradient(y, x, grad);
  CHECK(run.peak_bytes() == 240 + 120 + 800 + scratch);
  // If an order names the experts' rows, they are copied first, 4 for each row of x.
  run.reset_peak();
  Tensor out = meta({24, 20}, at::kBFloat16), all = grads;
  kernels::grouped_linear(x, order, 4, ends, experts, out);
  CHECK(run.peak_bytes() == 1160 + 960 + (gpu ? 24 * 10 * 2 : 0) + scratch);
  run.reset_peak();
  kernels::grouped_weight_gradient(dy, no_tensor, x, order, 4, ends, all);
  CHECK(run.peak_bytes() == 1160 + 960 + (gpu ? 24 * 10 * 2 : 0) + scratch);
  {
    const DryRun inner;  // for a CPU, even inside a run for a GPU
    kernels::record_scratch(1 << 30);
    CHECK(inner.peak_bytes() == 0);
  }
  CHECK(run.current_bytes() == 1160 + 960);
}

TEST_CASE("memory counts where a tensor was made, wherever it ends", "[dry_run]") {
  auto outer = std::make_unique<DryRun>();
  Tensor early = meta({10});
  Tensor late;
  {
    const DryRun inner;
    late = meta({100});
    CHECK(inner.current_bytes() == 400);
    CHECK(outer->current_bytes() == 40);
    early = Tensor();
    CHECK(inner.current_bytes() == 400);
    CHECK(outer->current_bytes() == 0);
  }
  CHECK(outer->current_bytes() == 0);
  late = Tensor();  // after its run
  CHECK(outer->current_bytes() == 0);
  Tensor moved = meta({20});
  std::thread([&] {
    const Tensor other = meta({30});  // no run on this thread
    CHECK(outer->current_bytes() == 80);
    moved = Tensor();
  }).join();
  CHECK(outer->current_bytes() == 0);
  CHECK(outer->peak_bytes() == 80);
  Tensor last = meta({20});
  outer.reset();
  last = Tensor();
}

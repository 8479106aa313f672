// A linear layer in FP8 against GEMMs in float64 of operands that PyTorch's conversion has rounded.
#include <ATen/Parallel.h>

#include <cmath>

#include "core/base/error.h"
#include "core/kernels/kernel_times.h"
#include "core/nn/linear.h"
#include "core/optim/optimizer.h"
#include "test/core/kernels/compare.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

using namespace pptrain;
using namespace pptrain::test;
using at::Tensor;

namespace {

// Rows of x, rounded to E4M3 with the least power of two that brings a row to 448 or below; float64.
Tensor in_fp8(const Tensor& x) {
  const Tensor wide = x.to(at::kDouble);
  const Tensor largest = wide.abs().amax(1, /*keepdim=*/true);
  const Tensor scales = at::exp2(at::ceil(at::log2(largest / 448)));
  return (wide / scales).to(at::kFloat).clamp(-448, 448).to(at::kFloat8_e4m3fn).to(at::kDouble) * scales;
}

struct Layer {
  nn::ParameterGroup group;
  nn::Linear linear;

  explicit Layer(bool bias, const nn::ShardPlace& place = {}, bool weight_gradients = false)
      : linear(declare(bias, weight_gradients)) {
    group.materialise(at::kCPU, at::kBFloat16, /*with_gradients=*/true, place);
  }
  nn::Linear declare(bool bias, bool weight_gradients) {
    group.multiply_in_fp8(weight_gradients);
    return {group, 48, {{"a", 32}, {"b", 16}}, bias, 0.3};
  }
  // The whole weight, as layers see it.
  Tensor weight() { return group.buffers()[0]->whole_compute.narrow(0, 0, 48 * 48).view({48, 48}).clone(); }
};

Tensor random_rows(int64_t rows) {
  return at::randn({rows, 48}).mul(at::randn({rows, 1}).exp()).to(at::kBFloat16);
}

}  // namespace

TEST_CASE("a linear layer in FP8: both GEMMs, and the weight gradient in bfloat16", "[nn]") {
  at::set_num_threads(1);
  at::manual_seed(seed(31));
  const bool bias = GENERATE(false, true);
  Layer layer(bias);
  layer.group.initialise(3);
  if (bias) layer.group.find("a.bias")->master.normal_();
  layer.group.refresh_compute();
  const Tensor x = random_rows(37), dy = random_rows(37), weight = layer.weight();
  Tensor expected = in_fp8(x).mm(in_fp8(weight).t());
  if (bias) expected.narrow(1, 0, 32).add_(layer.group.find("a.bias")->compute.to(at::kDouble));
  CHECK(relative_error(layer.linear.forward(x), expected) < tolerance(at::kBFloat16));
  CHECK(relative_error(layer.linear.backward_input(dy), in_fp8(dy).mm(in_fp8(weight.t()).t())) <
        tolerance(at::kBFloat16));
  // FP8 differs from bfloat16 by far more than rounding.
  if (!bias)
    CHECK_FALSE(relative_error(expected, x.to(at::kDouble).mm(weight.t().to(at::kDouble))).value() < 0.01);
  layer.group.zero_grad();
  layer.linear.backward_weight(x, dy);
  const Tensor gradient = dy.t().to(at::kDouble).mm(x.to(at::kDouble));
  CHECK(relative_error(layer.group.find("a.weight")->grad, gradient.narrow(0, 0, 32)) < 1e-5);
}

TEST_CASE("the weight gradient in FP8 has a scale for each feature over all tokens", "[nn]") {
  at::set_num_threads(1);
  at::manual_seed(seed(33));
  const int64_t rows = GENERATE(1, 37, 64);
  Layer layer(/*bias=*/true, {}, /*weight_gradients=*/true);
  layer.group.initialise(3);
  layer.group.zero_grad();
  Tensor expected = at::zeros({48, 48}, at::kDouble);
  for (int pass = 0; pass < 2; ++pass) {
    const Tensor x = random_rows(rows), dy = random_rows(rows);
    layer.linear.backward_weight(x, dy);
    expected += in_fp8(dy.t()).mm(in_fp8(x.t()).t());
  }
  CHECK(relative_error(layer.group.find("a.weight")->grad, expected.narrow(0, 0, 32)) < 1e-5);
  CHECK(relative_error(layer.group.find("b.weight")->grad, expected.narrow(0, 32, 16)) < 1e-5);
}

TEST_CASE("copies in FP8 follow the weights, however these change", "[nn]") {
  at::set_num_threads(1);
  at::manual_seed(seed(32));
  const Tensor x = random_rows(20), dy = random_rows(20);
  const auto follows = [&](Layer& layer) {
    const Tensor weight = layer.weight();
    CHECK(relative_error(layer.linear.forward(x), in_fp8(x).mm(in_fp8(weight).t())) <
          tolerance(at::kBFloat16));
    CHECK(relative_error(layer.linear.backward_input(dy), in_fp8(dy).mm(in_fp8(weight.t()).t())) <
          tolerance(at::kBFloat16));
  };
  Layer layer(/*bias=*/false);
  layer.group.initialise(3);
  follows(layer);
  for (nn::Slice* slice : layer.group.slices()) slice->master.normal_();
  layer.group.refresh_compute();
  follows(layer);

  config::OptimizerSection options;
  const auto optimizer = optim::make_optimizer(options, layer.group.buffers());
  optimizer->keep_previous();
  for (nn::Slice* slice : layer.group.slices()) slice->grad.normal_();
  optimizer->step(/*lr=*/0.5, /*grad_scale=*/1);
  follows(layer);
  optimizer->undo();
  follows(layer);

  SECTION("whole weights come and go") {
    Layer sharded(/*bias=*/false, {.index = 0, .count = 2, .own_gradient = true});
    const auto gather = [&] {
      sharded.group.restore_whole_compute();
      sharded.group.buffers()[0]->whole_compute.normal_();
    };
    const int64_t bytes = 2 * 48 * 48 + 2 * 48 * 4;
    CHECK(sharded.group.fp8_bytes() == bytes);
    gather();
    follows(sharded);
    sharded.group.release_whole_compute();
    gather();
    follows(sharded);
  }
}

TEST_CASE("weights are rounded to FP8 once a step, activations and gradients in each microbatch", "[nn]") {
  at::set_num_threads(1);
  at::manual_seed(seed(34));
  Layer layer(/*bias=*/false);
  layer.group.initialise(3);
  const Tensor x = random_rows(20), dy = random_rows(20);
  const auto step = [&](int microbatches) {
    kernels::KernelTimes times;
    const kernels::KernelClock clock(times);
    for (int i = 0; i < microbatches; ++i) {
      layer.linear.forward(x);
      layer.linear.backward_input(dy);
    }
    layer.group.refresh_compute();
    return std::pair(times[{"quantize_rows", std::nullopt}].calls,
                     times[{"quantize_columns", std::nullopt}].calls);
  };
  for (const int microbatches : {1, 5, 3}) {
    const auto [rows, columns] = step(microbatches);
    CHECK(rows == 2 * microbatches + 1);
    CHECK(columns == 1);
  }
}

TEST_CASE("FP8 is refused for sizes that the hardware does not take, and in float32", "[nn]") {
  nn::ParameterGroup group;
  group.multiply_in_fp8();
  CHECK_THROWS_WITH((nn::Linear(group, 24, {{"layers.0.mlp.down", 32}}, false, 0.1)),
                    contains_text("layers.0.mlp.down.weight is 32 x 24") && contains_text("train.fp8"));
  nn::ParameterGroup wide;
  wide.multiply_in_fp8();
  const nn::Linear layer(wide, 16, {{"a", 16}}, false, 0.1);
  CHECK_THROWS_WITH(wide.materialise(at::kCPU, at::kFloat), contains_text("needs bfloat16"));
}

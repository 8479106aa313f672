// The arithmetic that the CUDA kernels share with the host, against closed forms and PyTorch.
#include "core/kernels/cuda/math.h"

#include <ATen/core/Tensor.h>

#include <cmath>
#include <type_traits>
#include <vector>

#include "test/support/catch.h"
#include "test/support/ops.h"
#include "test/support/torch_adamw.h"

using pptrain::kernels::StepScalars;
using namespace pptrain::kernels::cuda;

TEST_CASE("silu and its gradient agree with finite differences in double") {
  const auto y = [](double gate, double up) { return gate / (1.0 + std::exp(-gate)) * up; };
  for (const double gate : {-30.0, -4.0, -0.5, 0.0, 0.25, 3.0, 30.0}) {
    const double up = 1.75;
    const double dy = -0.5;
    const double h = 1e-5;
    const SwigluGradient g =
        swiglu_gradient(static_cast<float>(dy), static_cast<float>(gate), static_cast<float>(up));
    CHECK(silu(static_cast<float>(gate)) == Approx(y(gate, 1.0)).margin(1e-6));
    CHECK(g.gate == Approx(dy * (y(gate + h, up) - y(gate - h, up)) / (2 * h)).margin(1e-6));
    CHECK(g.up == Approx(dy * y(gate, 1.0)).margin(1e-6));
  }
}

TEST_CASE("activations and their slopes agree with closed forms in double") {
  using enum pptrain::kernels::Activation;
  const auto check = [](auto activation, double (*value)(double)) {
    for (const double x : {-200.0, -30.0, -4.0, -0.5, 0.0, 0.25, 3.0, 30.0, 200.0}) {
      CAPTURE(x);
      const double h = 1e-5;
      const Activated at = activated<decltype(activation)::value>(static_cast<float>(x));
      CHECK(at.value == Approx(value(x)).margin(1e-6));
      CHECK(at.slope == Approx((value(x + h) - value(x - h)) / (2 * h)).margin(2e-5));
    }
  };
  check(std::integral_constant<pptrain::kernels::Activation, silu>(),
        [](double x) { return x / (1 + std::exp(-x)); });
  check(std::integral_constant<pptrain::kernels::Activation, gelu>(),
        [](double x) { return x / 2 * std::erfc(-x / std::sqrt(2.0)); });
  check(std::integral_constant<pptrain::kernels::Activation, gelu_tanh>(),
        [](double x) { return x / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); });
  check(std::integral_constant<pptrain::kernels::Activation, relu_squared>(),
        [](double x) { return x > 0 ? x * x : 0.0; });
}

TEST_CASE("sigmoid saturates without NaN") {
  CHECK(sigmoid(-200.0F) == 0.0F);
  CHECK(sigmoid(200.0F) == 1.0F);
  CHECK(swiglu_gradient(1.0F, -200.0F, 1.0F).gate == 0.0F);
}

TEST_CASE("a rotation by a right angle swaps, and the opposite rotation undoes any") {
  const Pair quarter = rotate({2.0F, 3.0F}, 0.0F, 1.0F);
  CHECK(quarter.first == -3.0F);
  CHECK(quarter.second == 2.0F);
  const float angle = 0.7F;
  const Pair there = rotate({2.0F, 3.0F}, std::cos(angle), std::sin(angle));
  const Pair back = rotate(there, std::cos(angle), -std::sin(angle));
  CHECK(back.first == Approx(2.0F));
  CHECK(back.second == Approx(3.0F));
}

TEST_CASE("adamw_update follows torch::optim::AdamW over many steps") {
  const double lr = 0.03;
  const double decay = 0.1;
  const double beta1 = 0.9;
  const double beta2 = 0.95;
  at::Tensor weight = at::tensor({0.5F, -2.0F, 1e-3F}).requires_grad_(true);
  pptrain::test::TorchAdamW oracle({{.leaf = weight, .decay = decay}}, {beta1, beta2});
  std::vector<StepState> states{{0.5F, 0.0F, 0.0F}, {-2.0F, 0.0F, 0.0F}, {1e-3F, 0.0F, 0.0F}};
  for (int step = 1; step <= 20; ++step) {
    const StepScalars scalars{.grad_scale = 0.5F,
                              .decay = static_cast<float>(1.0 - lr * decay),
                              .beta2 = static_cast<float>(beta2),
                              .one_minus_beta1 = static_cast<float>(1.0 - beta1),
                              .one_minus_beta2 = static_cast<float>(1.0 - beta2),
                              .step_size = static_cast<float>(lr / (1.0 - std::pow(beta1, step))),
                              .correction2 = static_cast<float>(std::sqrt(1.0 - std::pow(beta2, step))),
                              .eps = 1e-8F};
    std::vector<float> halved;
    for (std::size_t i = 0; i < states.size(); ++i) {
      const float grad = std::sin(static_cast<float>(step) + static_cast<float>(i));
      states[i] = adamw_update(states[i], grad, scalars);
      halved.push_back(grad * 0.5F);
    }
    weight.mutable_grad() = at::tensor(halved);
    oracle.step(lr);
    for (std::size_t i = 0; i < states.size(); ++i) {
      CHECK(states[i].weight ==
            Approx(weight[static_cast<int64_t>(i)].item<float>()).epsilon(1e-5).margin(1e-6));
    }
  }
}

TEST_CASE("lion_update follows the paper's formula over many steps") {
  const StepScalars scalars{.grad_scale = 0.5F,
                            .decay = 1 - 0.03F * 0.1F,
                            .beta2 = 0.99F,
                            .one_minus_beta1 = 0.1F,
                            .one_minus_beta2 = 0.01F,
                            .step_size = 0.03F,
                            .correction2 = 1,
                            .eps = 0};
  StepState state{0.5F, 0.0F, 0.0F};
  double weight = 0.5, average = 0;
  for (int step = 1; step <= 20; ++step) {
    const float grad = std::sin(static_cast<float>(step));
    const double g = 0.5 * static_cast<double>(grad), direction = 0.9 * average + 0.1 * g;
    weight = weight * (1 - 0.03 * 0.1) - 0.03 * (direction > 0 ? 1 : direction < 0 ? -1 : 0);
    average = 0.99 * average + 0.01 * g;
    state = lion_update(state, grad, scalars);
    CHECK(state.weight == Approx(weight).epsilon(1e-5));
    CHECK(state.exp_avg == Approx(average).epsilon(1e-5).margin(1e-7));
  }
  CHECK(lion_update({1.0F, 0.0F, 0.0F}, 0.0F, scalars).weight == Approx(scalars.decay));
}

// Every kernel against LibTorch's autograd in float64, in both compute types, with sizes that end within a
// vector.
#include "core/kernels/kernels.h"

#include <ATen/Parallel.h>
#include <ATen/TensorIndexing.h>

#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "core/base/error.h"
#include "test/core/kernels/compare.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

using namespace pptrain;
using namespace pptrain::test;
using at::Tensor;

namespace {

struct SingleThread {
  SingleThread() {
    at::set_num_threads(1);
    at::manual_seed(test::seed(17));
  }
};

constexpr double kEps = 1e-5;
const auto f32 = at::TensorOptions().dtype(at::kFloat);

}  // namespace

TEST_CASE("rms_norm and its gradient", "[kernels]") {
  const SingleThread setup;
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const auto [rows, dim] = GENERATE(std::pair{1, 1}, std::pair{3, 7}, std::pair{5, 64}, std::pair{130, 200});
  const Tensor x = random({rows, dim}, type);
  const Tensor dy = random({rows, dim}, type);
  const Tensor residual = random({rows, dim}, type);
  const Tensor weight = at::rand({dim}, f32) + 0.5;
  Tensor y = at::empty_like(x);
  Tensor rstd = at::empty({rows}, f32);
  Tensor dx = at::empty_like(x);
  Tensor weight_grad = at::ones({dim}, f32);

  const Tensor ox = leaf(x);
  const Tensor ow = leaf(weight);
  const Tensor oy = test::rms_norm(ox, ow, kEps);
  oy.backward(dy.to(at::kDouble));

  kernels::rms_norm(x, weight, kEps, y, rstd);
  CHECK(relative_error(y, oy) < tolerance(type));
  CHECK(relative_error(rstd, at::rsqrt(ox.pow(2).mean(-1) + kEps)) < 2e-6);

  kernels::rms_norm_backward(dy, x, weight, rstd, std::nullopt, dx, weight_grad);
  // dx is a difference that cancels completely in one dimension.
  const Tensor minuend = dy.to(at::kDouble) * ow.detach() * rstd.to(at::kDouble).unsqueeze(-1);
  CHECK(norm_of(dx.to(at::kDouble) - ox.grad()) < tolerance(type) * minuend.norm().item<double>() * 3);
  CHECK(relative_error(weight_grad - 1, ow.grad()) < 1e-5);

  SECTION("with a residual gradient, in place of dy") {
    Tensor in_place = dy.clone();
    weight_grad.fill_(1);
    kernels::rms_norm_backward(in_place, x, weight, rstd, residual, in_place, weight_grad);
    CHECK(relative_error(in_place, ox.grad() + residual.to(at::kDouble)) < tolerance(type));
    CHECK(relative_error(weight_grad - 1, ow.grad()) < 1e-5);
  }
  SECTION("fused with the addition it gives the bits of the separate form") {
    Tensor sum = residual.clone();
    Tensor fused_y = at::empty_like(x);
    Tensor fused_rstd = at::empty_like(rstd);
    kernels::add_rms_norm(x, sum, weight, kEps, sum, fused_y, fused_rstd);
    const Tensor separate_sum = x + residual;
    kernels::rms_norm(separate_sum, weight, kEps, y, rstd);
    CHECK(same_bits(sum, separate_sum));
    CHECK(same_bits(fused_y, y));
    CHECK(same_bits(fused_rstd, rstd));
  }
}

namespace {

// One part of norm_rope in float64, by autograd.
struct HeadsReference {
  Tensor x, weight, y;
};

HeadsReference rotated_heads(const Tensor& x, const std::optional<Tensor>& weight,
                             const kernels::RopeTable& table, const Tensor& positions, const Tensor& dy) {
  const Tensor order = positions.to(at::kLong);
  const Tensor cos = table.cos.index({order}).to(at::kDouble), sin = table.sin.index({order}).to(at::kDouble);
  HeadsReference result{.x = leaf(x), .weight = weight ? leaf(*weight) : Tensor(), .y = {}};
  result.y = test::rotate(weight ? test::rms_norm(result.x, result.weight, kEps) : result.x, cos, sin);
  result.y.backward(dy.to(at::kDouble));
  return result;
}

kernels::RopeTable random_angles(int64_t head_dim) {
  return {.cos = at::randn({50, head_dim / 2}, f32), .sin = at::randn({50, head_dim / 2}, f32)};
}

}  // namespace

TEST_CASE("norm_rope and its gradient", "[kernels]") {
  const SingleThread setup;
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const auto head_dim = GENERATE(2, 24, 64, 128);
  const bool with_norm = GENERATE(false, true);
  const int64_t tokens = 74, heads = 3;  // more than one block of the weight gradient's sum
  const Tensor fused = random({tokens, heads + 2, head_dim}, type);
  const Tensor x = fused.narrow(1, 1, heads);  // a view of a wider buffer
  const Tensor dy = random({heads, tokens, head_dim}, type).transpose(0, 1);
  const Tensor weight = at::rand({head_dim}, f32) + 0.5;
  const kernels::RopeTable table = random_angles(head_dim);
  const Tensor positions = at::randint(0, 50, {tokens}, at::kInt);
  const std::optional<Tensor> norm = with_norm ? std::optional(weight) : std::nullopt;
  const HeadsReference o = rotated_heads(x, norm, table, positions, dy);

  const Tensor y = at::empty({tokens, heads, head_dim}, fused.options());
  const Tensor rstd = at::empty({tokens, heads}, f32);
  kernels::norm_rope({{.x = x, .y = y, .weight = norm, .rstd = rstd}}, kEps, table, positions);
  CHECK(relative_error(y, o.y) < tolerance(type));

  const Tensor dfused = at::zeros_like(fused);
  const Tensor dx = dfused.narrow(1, 1, heads);
  const Tensor weight_grad = at::ones({head_dim}, f32);
  kernels::norm_rope_backward({{.dy = dy,
                                .dx = dx,
                                .x = x,
                                .weight = norm,
                                .rstd = rstd,
                                .weight_grad = with_norm ? std::optional(weight_grad) : std::nullopt}},
                              table, positions);
  CHECK(relative_error(dx, o.x.grad()) < 2 * tolerance(type));
  CHECK(dfused.select(1, 0).abs().sum().item<double>() == 0);
  CHECK(dfused.select(1, heads + 1).abs().sum().item<double>() == 0);
  if (with_norm) {
    CHECK(relative_error(weight_grad - 1, o.weight.grad()) < 1e-5);
  } else {
    const Tensor in_place = fused.clone();
    const Tensor view = in_place.narrow(1, 1, heads);
    kernels::norm_rope({{.x = view, .y = view}}, kEps, table, positions);
    CHECK(same_bits(view, y));
    CHECK(same_bits(in_place.select(1, 0), fused.select(1, 0)));
  }
}

TEST_CASE("norm_rope of q and k at once has the bits of two calls, each with its own weight", "[kernels]") {
  const SingleThread setup;
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const bool with_norm = GENERATE(false, true);
  const int64_t tokens = 74, dim = 64;
  const Tensor qkv = random({tokens, 5 + 2 + 2, dim}, type),
               positions = at::randint(0, 50, {tokens}, at::kInt);
  const kernels::RopeTable table = random_angles(dim);
  std::vector<kernels::HeadsPart> parts;
  std::vector<kernels::HeadsGradient> gradients;
  for (const auto& [first, heads] : {std::pair{0, 5}, std::pair{5, 2}}) {
    const Tensor x = qkv.narrow(1, first, heads);
    kernels::HeadsPart part{.x = x, .y = at::empty(x.sizes(), x.options())};
    kernels::HeadsGradient gradient{.dy = random(x.sizes(), type), .dx = at::empty(x.sizes(), x.options())};
    if (with_norm) {
      gradient.x = x;
      gradient.weight = part.weight = at::rand({dim}, f32) + 0.5;
      gradient.rstd = part.rstd = at::empty({tokens, heads}, f32);
      gradient.weight_grad = at::ones({dim}, f32);
    }
    parts.push_back(part);
    gradients.push_back(gradient);
  }
  kernels::norm_rope(parts, kEps, table, positions);
  kernels::norm_rope_backward(gradients, table, positions);
  for (size_t i = 0; i < parts.size(); ++i) {
    CAPTURE(type, with_norm, i);
    const HeadsReference o = rotated_heads(parts[i].x, parts[i].weight, table, positions, gradients[i].dy);
    CHECK(relative_error(parts[i].y, o.y) < tolerance(type));
    CHECK(relative_error(gradients[i].dx, o.x.grad()) < 2 * tolerance(type));
    kernels::HeadsPart part = parts[i];
    kernels::HeadsGradient gradient = gradients[i];
    part.y = at::empty_like(part.y);
    gradient.dx = at::empty_like(gradient.dx);
    if (with_norm) {
      CHECK(relative_error(*gradient.weight_grad - 1, o.weight.grad()) < 1e-5);
      gradient.weight_grad = at::ones({dim}, f32);
    }
    kernels::norm_rope({part}, kEps, table, positions);
    kernels::norm_rope_backward({gradient}, table, positions);
    CHECK(same_bits(part.y, parts[i].y));
    CHECK(same_bits(gradient.dx, gradients[i].dx));
    if (with_norm) CHECK(same_bits(*gradient.weight_grad, *gradients[i].weight_grad));
  }
}

TEST_CASE("norm_rope refuses parts that do not belong together", "[kernels]") {
  const auto heads = [](int64_t tokens, int64_t dim) { return at::zeros({tokens, 2, dim}, f32); };
  const kernels::RopeTable table = random_angles(8);
  const Tensor positions = at::zeros({3}, at::kInt);
  const auto call = [&](const std::vector<kernels::HeadsPart>& parts) {
    kernels::norm_rope(parts, kEps, table, positions);
  };
  const kernels::HeadsPart q{.x = heads(3, 8), .y = heads(3, 8)};
  kernels::HeadsPart normed = q;
  normed.weight = at::ones({8}, f32);
  normed.rstd = at::empty({3, 2}, f32);
  CHECK_NOTHROW(call({q, q}));
  CHECK_THROWS_WITH(call({}), contains_text("norm_rope"));
  CHECK_THROWS_WITH(call({q, q, q}), contains_text("at most two parts"));
  CHECK_THROWS_WITH(call({normed, q}), contains_text("all parts have a weight, or none has"));
  CHECK_THROWS_WITH(call({q, {.x = heads(3, 6), .y = heads(3, 6)}}), contains_text("norm_rope"));
  CHECK_THROWS_WITH(call({q, {.x = heads(4, 8), .y = heads(4, 8)}}), contains_text("norm_rope"));
}

TEST_CASE("swiglu and its gradient", "[kernels]") {
  const SingleThread setup;
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const auto [rows, dim] = GENERATE(std::pair{1, 1}, std::pair{3, 17}, std::pair{20, 160});
  const Tensor gate_up = random({rows, 2 * dim}, type) * 4;
  const Tensor dy = random({rows, dim}, type);
  const Tensor ox = leaf(gate_up);
  const auto halves = ox.chunk(2, 1);
  const Tensor oy = halves[0] * at::sigmoid(halves[0]) * halves[1];
  oy.backward(dy.to(at::kDouble));

  Tensor y = at::empty_like(dy);
  kernels::swiglu(gate_up, y);
  CHECK(relative_error(y, oy) < tolerance(type));
  Tensor in_place = gate_up.clone();
  kernels::swiglu_backward(dy, in_place, in_place, std::nullopt);
  CHECK(relative_error(in_place, ox.grad()) < tolerance(type));

  Tensor gradient = gate_up.clone(), again = dy.clone();  // both in place
  kernels::swiglu_backward(again, gradient, gradient, again);
  CHECK(same_bits(gradient, in_place));
  CHECK(same_bits(again, y));
}

namespace {

Tensor plain_activation(const Tensor& x, kernels::Activation activation) {
  switch (activation) {
    case kernels::Activation::silu:
      return x * at::sigmoid(x);
    case kernels::Activation::gelu:
      return at::gelu(x);
    case kernels::Activation::gelu_tanh:
      return at::gelu(x, "tanh");
    case kernels::Activation::relu_squared:
      return at::relu(x).square();
  }
  throw Error("unknown activation");
}

}  // namespace

TEST_CASE("activations and their gradients, with and without a gate", "[kernels]") {
  const SingleThread setup;
  using enum kernels::Activation;
  const auto activation = GENERATE(silu, gelu, gelu_tanh, relu_squared);
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const bool gated = GENERATE(false, true);
  const auto [rows, dim] = GENERATE(std::pair{1, 1}, std::pair{3, 17}, std::pair{20, 160});
  const Tensor x = random({rows, gated ? 2 * dim : dim}, type) * 4;
  const Tensor dy = random({rows, dim}, type);
  const Tensor ox = leaf(x);
  const Tensor oy = gated ? plain_activation(ox.chunk(2, 1)[0], activation) * ox.chunk(2, 1)[1]
                          : plain_activation(ox, activation);
  oy.backward(dy.to(at::kDouble));
  // Far below zero a value is the small difference of large numbers, as in LibTorch, so errors are compared
  // with the operands too.
  const double operands = x.to(at::kDouble).norm().item<double>();
  const auto error = [&](const Tensor& actual, const Tensor& expected, CallSite place = CallSite::current()) {
    return Difference((actual.to(at::kDouble) - expected.detach()).norm().item<double>() /
                          (expected.norm().item<double>() + operands),
                      place);
  };

  Tensor y = at::empty_like(dy);
  kernels::activate(x, activation, y);
  CHECK(error(y, oy) < tolerance(type));
  Tensor in_place = x.clone();
  kernels::activate_backward(dy, in_place, activation, in_place, std::nullopt);
  CHECK(error(in_place, ox.grad()) < tolerance(type));

  Tensor gradient = x.clone(), again = dy.clone();  // both in place
  kernels::activate_backward(again, gradient, activation, gradient, again);
  CHECK(same_bits(gradient, in_place));
  CHECK(same_bits(again, y));
}

TEST_CASE("activations far from zero are 0 or x, with finite slopes", "[kernels]") {
  const SingleThread setup;
  using enum kernels::Activation;
  const auto activation = GENERATE(silu, gelu, gelu_tanh);
  const Tensor x = at::tensor({-3e38F, -1e12F, -200.0F, 200.0F, 1e12F, 3e38F}, f32).unsqueeze(0);
  Tensor y = at::empty_like(x), dx = at::empty_like(x);
  kernels::activate(x, activation, y);
  kernels::activate_backward(at::ones_like(x), x, activation, dx, std::nullopt);
  CHECK(largest(y - at::relu(x)) < 1e-30);
  CHECK(largest(dx - x.gt(0).to(f32)) < 1e-30);
  Tensor nan = at::full({1, 1}, std::nanf(""), f32), out = at::empty_like(nan);
  kernels::activate(nan, activation, out);
  CHECK(std::isnan(out.item<float>()));
}

TEST_CASE("swiglu at the ends of the exponential", "[kernels]") {
  const SingleThread setup;
  const float inf = std::numeric_limits<float>::infinity();
  const Tensor gate =
      at::tensor({-200.0F, -88.5F, -87.0F, -30.0F, 0.0F, 30.0F, 88.7F, 200.0F, inf, std::nanf("")}, f32);
  const Tensor gate_up = test::cat({gate, at::ones_like(gate)}).unsqueeze(0);
  Tensor y = at::empty({1, gate.size(0)}, f32);
  kernels::swiglu(gate_up, y);
  const Tensor expected = (gate.to(at::kDouble) * at::sigmoid(gate.to(at::kDouble))).unsqueeze(0);
  for (int64_t i = 0; i < gate.size(0) - 2; ++i) {
    CHECK(std::abs(y[0][i].item<double>() - expected[0][i].item<double>()) <=
          2e-7 * std::abs(expected[0][i].item<double>()) + 1e-35);
  }
  CHECK(y[0][8].item<float>() == inf);
  CHECK(std::isnan(y[0][9].item<float>()));
}

TEST_CASE("softcap and its gradient", "[kernels]") {
  const SingleThread setup;
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const auto cap = GENERATE(0.0, 5.0, 30.0);
  const auto factor = GENERATE(0.01, 1.0, 20.0);  // deep in the linear part, and beyond the cap
  const Tensor x = random({7, 45}, type) * factor;
  const Tensor dy = random({7, 45}, type);
  const Tensor ox = leaf(x);
  const Tensor oy = cap > 0 ? (ox * 0.5 / cap).tanh() * cap : ox * 0.5;
  oy.backward(dy.to(at::kDouble));

  Tensor y = x.clone(), dx = dy.clone();
  kernels::softcap(y, 0.5, cap);
  CHECK(relative_error(y, oy) < tolerance(type));
  if (cap > 0) {
    kernels::softcap_backward(y, 0.5, cap, dx);
    // Near the cap the remaining slope is lost in the rounding of y.
    CHECK(norm_of(dx.to(at::kDouble) - ox.grad()) <
          2 * tolerance(type) * dy.to(at::kDouble).norm().item<double>());
  }
}

TEST_CASE("cross entropy and its gradient", "[kernels]") {
  const SingleThread setup;
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const auto vocab = GENERATE(1, 13, 256, 1000);
  const int64_t rows = 6;
  const Tensor logits = random({rows, vocab}, type) * 5;
  Tensor labels = at::randint(0, vocab, {rows}, at::kLong);
  labels[2] = -100;
  labels[5] = vocab - 1;
  const Tensor ox = leaf(logits);
  const Tensor oloss = at::nll_loss_nd(at::log_softmax(ox, 1), labels, {}, at::Reduction::None, -100);
  oloss.sum().backward();

  Tensor in_place = logits.clone();
  Tensor loss = at::empty({rows}, f32);
  kernels::cross_entropy(in_place, labels, loss, false);
  CHECK(same_bits(in_place, logits));
  CHECK(largest(loss.to(at::kDouble) - oloss) < 1e-5);
  CHECK(loss[2].item<float>() == 0);

  Tensor loss_again = at::empty({rows}, f32);
  kernels::cross_entropy(in_place, labels, loss_again, true);
  CHECK(same_bits(loss_again, loss));
  CHECK(largest(in_place.to(at::kDouble) - ox.grad()) < tolerance(type));
  CHECK(relative_error(in_place, ox.grad()) < tolerance(type));
  CHECK(in_place[2].abs().sum().item<double>() == 0);
}

TEST_CASE("cross entropy passes on what is not finite, and refuses bad labels", "[kernels]") {
  const SingleThread setup;
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const auto column = GENERATE(0, 20, 36);
  const bool gradient = GENERATE(false, true);
  const Tensor labels = at::tensor({3, 3, 3, -100}, at::kLong);
  Tensor logits = random({4, 37}, type);
  logits[0][column] = std::nan("");
  logits[1][column] = std::numeric_limits<double>::infinity();
  logits[3][column] = std::nan("");
  Tensor loss = at::empty({4}, f32);
  kernels::cross_entropy(logits, labels, loss, gradient);
  CHECK(std::isnan(loss[0].item<float>()));
  CHECK_FALSE(std::isfinite(loss[1].item<float>()));
  CHECK(std::isfinite(loss[2].item<float>()));
  CHECK(loss[3].item<float>() == 0);

  logits = random({4, 37}, type);
  CHECK_THROWS_AS(kernels::cross_entropy(logits, at::tensor({3, 37, 0, 0}, at::kLong), loss, gradient),
                  Error);
  CHECK_THROWS_AS(kernels::cross_entropy(logits, at::tensor({3, -1, 0, 0}, at::kLong), loss, gradient),
                  Error);
}

TEST_CASE("a large logit does not overflow the loss", "[kernels]") {
  const SingleThread setup;
  Tensor logits = at::tensor({1e30F, -1e30F, 0.0F, 5.0F}, f32).view({1, 4});
  Tensor loss = at::empty({1}, f32);
  kernels::cross_entropy(logits, at::zeros({1}, at::kLong), loss, true);
  CHECK(loss.item<float>() == 0);
  CHECK(logits.abs().sum().item<float>() == 0);
}

TEST_CASE("embedding and its gradient", "[kernels]") {
  const SingleThread setup;
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const Tensor weight = random({11, 37}, type);
  const Tensor tokens = at::tensor({3, 0, 3, 10, 3}, at::kLong);
  Tensor out = at::empty({5, 37}, weight.options());
  kernels::embedding(tokens, weight, {.first = 0, .vocab = 11}, out);
  CHECK(same_bits(out, weight.index_select(0, tokens)));

  const Tensor dy = random({5, 37}, type);
  Tensor grad = at::ones({11, 37}, f32);
  kernels::embedding_backward(tokens, dy, {.first = 0, .vocab = 11}, grad);
  CHECK(relative_error(grad, at::ones({11, 37}, at::kDouble).index_add(0, tokens, dy.to(at::kDouble))) <
        1e-6);
  CHECK_THROWS_AS(
      kernels::embedding(at::tensor({11, 0, 0, 0, 0}, at::kLong), weight, {.first = 0, .vocab = 11}, out),
      Error);
}

TEST_CASE("gradients of weight and bias accumulate in float32", "[kernels]") {
  const SingleThread setup;
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const auto rows = GENERATE(1, 7, 300);
  const Tensor dy = random({rows, 37}, type);
  const Tensor x = random({rows, 19}, type);
  const Tensor before = at::randn({37, 19}, f32);
  const Tensor bias_before = at::randn({37}, f32);
  Tensor grad = before.clone();
  Tensor bias_grad = bias_before.clone();
  kernels::accumulate_weight_gradient(dy, x, grad);
  kernels::accumulate_bias_gradient(dy, bias_grad);
  const Tensor d = dy.to(at::kDouble);
  CHECK(relative_error(grad, before.to(at::kDouble) + d.t().mm(x.to(at::kDouble))) < 2e-6);
  CHECK(relative_error(bias_grad, bias_before.to(at::kDouble) + d.sum(0)) < 2e-6);
}

TEST_CASE("a first weight gradient overwrites, whatever was there", "[kernels]") {
  const SingleThread setup;
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const auto rows = GENERATE(0, 1, 7, 300, 2500);
  const Tensor dy = random({rows, 37}, type), x = random({rows, 19}, type);
  Tensor grad = at::full({37, 19}, std::nan(""), f32), added = at::zeros({37, 19}, f32);
  kernels::weight_gradient(dy, x, grad);
  kernels::accumulate_weight_gradient(dy, x, added);
  CHECK(relative_error(grad, dy.to(at::kDouble).t().mm(x.to(at::kDouble))) < 2e-6);
  CHECK(grad.eq(added).all().item<bool>());  // the same sums as when added to zeros
}

TEST_CASE("matmul, also with a long inner dimension", "[kernels]") {
  const SingleThread setup;
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const auto [rows, inner, cols] =
      GENERATE(std::tuple{3, 5, 7}, std::tuple{33, 2051, 19}, std::tuple{31, 2051, 19});
  const Tensor a = random({rows, inner}, type);
  const Tensor b = random({inner, cols}, type);
  Tensor out = at::empty({rows, cols}, a.options());
  kernels::matmul(a, b, out);
  CHECK(relative_error(out, a.to(at::kDouble).mm(b.to(at::kDouble))) < tolerance(type));
}

TEST_CASE("linear is x weight^T + bias", "[kernels]") {
  const SingleThread setup;
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const auto [rows, in, outputs] =
      GENERATE(std::tuple{1, 5, 7}, std::tuple{3, 37, 9}, std::tuple{7, 130, 33}, std::tuple{33, 200, 64});
  const Tensor wide = random({rows, in + 3}, type), weight = random({outputs, in}, type);
  const Tensor bias = random({outputs}, type), x = wide.narrow(1, 1, in);  // rows that lie apart
  const Tensor product = x.to(at::kDouble).mm(weight.to(at::kDouble).t());
  Tensor out = at::empty({rows, outputs}, x.options());
  kernels::linear(x, weight, std::nullopt, out);
  CHECK(relative_error(out, product) < tolerance(type));
  kernels::linear(x, weight, bias, out);
  CHECK(relative_error(out, product + bias.to(at::kDouble)) < tolerance(type));
  CHECK_THROWS_AS(kernels::linear(x, weight, bias.narrow(0, 1, outputs - 1), out), Error);
}

TEST_CASE("a row of a product of few rows has the bits of the row alone, on any threads", "[kernels]") {
  const SingleThread setup;
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const Tensor x = random({16, 300}, type), weight = random({777, 300}, type);
  Tensor all = at::empty({16, 777}, x.options());
  kernels::linear(x, weight, std::nullopt, all);
  for (const int64_t rows : {1, 2, 5, 16}) {
    at::set_num_threads(rows == 5 ? 3 : 1);
    Tensor some = at::empty({rows, 777}, x.options());
    kernels::linear(x.narrow(0, 16 - rows, rows), weight, std::nullopt, some);
    CHECK(same_bits(some, all.narrow(0, 16 - rows, rows)));
  }
}

TEST_CASE("arguments are checked, and the message says which and how", "[kernels]") {
  const SingleThread setup;
  const Tensor x = at::randn({4, 8}, f32);
  Tensor y = at::empty({4, 9}, f32);
  Tensor rstd = at::empty({4}, f32);
  try {
    kernels::rms_norm(x, at::ones({8}, f32), kEps, y, rstd);
    FAIL("no error");
  } catch (const Error& error) {
    const std::string message = error.what();
    CHECK(message.find("rms_norm: y") != std::string::npos);
    CHECK(message.find("[4, 8]") != std::string::npos);
    CHECK(message.find("[4, 9]") != std::string::npos);
  }
  y = at::empty({8, 4}, f32).t();
  CHECK_THROWS_AS(kernels::rms_norm(x, at::ones({8}, f32), kEps, y, rstd), Error);
  y = at::empty({4, 8}, f32);
  CHECK_THROWS_AS(kernels::rms_norm(x, at::ones({8}, at::kDouble), kEps, y, rstd), Error);
}

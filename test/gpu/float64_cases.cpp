// The kernels of a training step against plain LibTorch expressions in float64, with gradients by autograd.
#include <ATen/TensorIndexing.h>

#include <cmath>
#include <optional>
#include <span>

#include "core/kernels/exact_sum.h"
#include "test/gpu/kernel_support.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

using namespace pptrain::test;
namespace kernels = pptrain::kernels;

namespace {

// Checks that the subject's result equals the float64 one up to a few roundings in its type. In float32 the
// device's own exp is one of them.
void check(const char* what, const Tensor& actual, const Tensor& expected) {
  INFO(what);
  const double allowed = actual.scalar_type() == at::kBFloat16 ? tolerance(at::kBFloat16) : 1e-5;
  CHECK(relative_error(actual.cpu(), expected) < allowed);
}

Tensor on_host(const Tensor& x) {
  return leaf(x.cpu());
}

}  // namespace

TEST_CASE("norms in float64", "[gpu]") {
  if (!can_run()) return;
  const Backend& b = subject();
  for (const auto type : types) {
    CAPTURE(type);
    const Tensor x = b.random({37, 129}, type, 1), dy = b.random({37, 129}, type, 2);
    const Tensor residual = b.random({37, 129}, type, 3), weight = b.random({129}, at::kFloat, 4);
    Tensor y = b.output({37, 129}, type), dx = b.output({37, 129}, type), rstd = b.output({37}, at::kFloat);
    Tensor weight_grad = at::zeros_like(weight);
    b(kernels::rms_norm, x, weight, eps, y, rstd);
    b(kernels::rms_norm_backward, dy, x, weight, rstd, residual, dx, weight_grad);

    const Tensor x64 = on_host(x), weight64 = on_host(weight);
    const Tensor y64 = rms_norm(x64, weight64, eps);
    y64.backward(dy.cpu().to(at::kDouble));
    check("y", y, y64);
    check("rstd", rstd, at::rsqrt(x64.pow(2).mean(-1) + eps));
    check("dx", dx, x64.grad() + residual.cpu().to(at::kDouble));
    check("weight_grad", weight_grad, weight64.grad());
  }
}

TEST_CASE("heads with norm and rotation in float64", "[gpu]") {
  if (!can_run()) return;
  const Backend& b = subject();
  const int64_t tokens = 21, dim = 64;
  const Tensor frequency = at::pow(10000.0, at::arange(0, dim, 2, at::kDouble).neg() / dim);
  const Tensor angle = at::outer(at::arange(tokens, at::kDouble), frequency);
  const kernels::RopeTable rope{angle.cos().to(b.device, at::kFloat), angle.sin().to(b.device, at::kFloat)};
  const Tensor positions = at::arange(tokens, at::kInt).flip(0).contiguous();
  for (const auto type : types) {
    std::vector<kernels::HeadsPart> parts;
    std::vector<kernels::HeadsGradient> gradients;
    for (const int64_t heads : {3, 2}) {  // of q and k
      const Tensor x = b.random({tokens, heads, dim}, type, heads),
                   weight = b.random({dim}, at::kFloat, 10 + heads);
      parts.push_back({.x = x,
                       .y = b.output(x.sizes(), type),
                       .weight = weight,
                       .rstd = b.output({tokens, heads}, at::kFloat)});
      gradients.push_back({.dy = b.random(x.sizes(), type, 20 + heads),
                           .dx = b.output(x.sizes(), type),
                           .x = x,
                           .weight = weight,
                           .rstd = parts.back().rstd,
                           .weight_grad = at::zeros_like(weight)});
    }
    b(kernels::norm_rope, parts, eps, rope, positions.to(b.device));
    b(kernels::norm_rope_backward, gradients, rope, positions.to(b.device));

    const Tensor order = positions.to(at::kLong);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      CAPTURE(type, i);
      const Tensor x64 = on_host(parts[i].x), weight64 = on_host(*parts[i].weight);
      const Tensor y64 =
          rotate(rms_norm(x64, weight64, eps), angle.cos().index({order}), angle.sin().index({order}));
      y64.backward(gradients[i].dy.cpu().to(at::kDouble));
      check("y", parts[i].y, y64);
      check("dx", gradients[i].dx, x64.grad());
      check("weight_grad", *gradients[i].weight_grad, weight64.grad());
    }
  }
}

TEST_CASE("swiglu in float64", "[gpu]") {
  if (!can_run()) return;
  const Backend& b = subject();
  for (const auto type : types) {
    CAPTURE(type);
    const Tensor gate_up = b.random({13, 2 * 100}, type, 1, 3.0), dy = b.random({13, 100}, type, 2);
    Tensor y = b.output({13, 100}, type), dgate_up = b.output({13, 200}, type);
    b(kernels::swiglu, gate_up, y);
    b(kernels::swiglu_backward, dy, gate_up, dgate_up, std::nullopt);

    const Tensor both = on_host(gate_up);
    const auto halves = both.chunk(2, 1);
    const Tensor y64 = halves[0] * at::sigmoid(halves[0]) * halves[1];
    y64.backward(dy.cpu().to(at::kDouble));
    check("y", y, y64);
    check("dgate_up", dgate_up, both.grad());
  }
}

TEST_CASE("cross_entropy and the embedding's gradient in float64", "[gpu]") {
  if (!can_run()) return;
  const Backend& b = subject();
  for (const auto type : types) {
    CAPTURE(type);
    Tensor logits = b.random({40, 1003}, type, 1, 3.0);
    const Tensor labels = b.random_integers(1003, 40, 2);
    labels.narrow(0, 7, 3).fill_(-100);
    const Tensor logits64 = on_host(logits);
    const Tensor loss64 =
        at::nll_loss_nd(at::log_softmax(logits64, 1), labels.cpu(), {}, at::Reduction::None, -100);
    loss64.sum().backward();
    Tensor loss = b.output({40}, at::kFloat);
    b(kernels::cross_entropy, logits, labels, loss, true);
    check("loss", loss, loss64);
    check("gradient", logits, logits64.grad());

    const Tensor tokens = b.random_integers(17, 130, 3), dy = b.random({130, 24}, type, 4);
    Tensor weight_grad = at::zeros({17, 24}, at::TensorOptions().dtype(at::kFloat).device(b.device));
    b(kernels::embedding_backward, tokens, dy, {.first = 0, .vocab = 17}, weight_grad);
    check("embedding", weight_grad,
          at::zeros({17, 24}, at::kDouble).index_add(0, tokens.cpu(), dy.cpu().to(at::kDouble)));
  }
}

TEST_CASE("matrix products in float64", "[gpu][gemm]") {
  if (!can_run()) return;
  const Backend& b = subject();
  for (const auto type : types) {
    CAPTURE(type);
    const Tensor x = b.random({70, 24}, type, 1), weight = b.random({40, 24}, type, 2);
    const Tensor bias = b.random({40}, type, 3), dy = b.random({70, 40}, type, 4);
    const Tensor x64 = x.cpu().to(at::kDouble), weight64 = weight.cpu().to(at::kDouble);
    const Tensor dy64 = dy.cpu().to(at::kDouble);
    Tensor y = b.output({70, 40}, type), dx = b.output({70, 24}, type);
    Tensor weight_grad = b.random({40, 24}, at::kFloat, 5), bias_grad = b.random({40}, at::kFloat, 6);
    const Tensor weight_grad64 = weight_grad.cpu().to(at::kDouble) + dy64.t().mm(x64);
    const Tensor bias_grad64 = bias_grad.cpu().to(at::kDouble) + dy64.sum(0);
    b(kernels::linear, x, weight, bias, y);
    b(kernels::matmul, dy, weight, dx);
    b(kernels::accumulate_weight_gradient, dy, x, weight_grad);
    b(kernels::accumulate_bias_gradient, dy, bias_grad);
    check("y", y, x64.mm(weight64.t()) + bias.cpu().to(at::kDouble));
    check("dx", dx, dy64.mm(weight64));
    check("weight_grad", weight_grad, weight_grad64);
    check("bias_grad", bias_grad, bias_grad64);
  }
}

TEST_CASE("adamw and add_squares in float64", "[gpu]") {
  if (!can_run()) return;
  const Backend& b = subject();
  Tensor weight = b.random({4099}, at::kFloat, 1), exp_avg = b.random({4099}, at::kFloat, 2);
  Tensor exp_avg_sq = b.random({4099}, at::kFloat, 3).abs();
  const Tensor grad = b.random({4099}, at::kFloat, 4);
  const kernels::StepArgs args{.lr = 0.01, .weight_decay = 0.1, .grad_scale = 0.3, .step = 7};
  const Tensor grad64 = grad.cpu().to(at::kDouble) * args.grad_scale;
  const Tensor m = exp_avg.cpu().to(at::kDouble) * args.beta1 + grad64 * (1 - args.beta1);
  const Tensor v = exp_avg_sq.cpu().to(at::kDouble) * args.beta2 + grad64 * grad64 * (1 - args.beta2);
  const double first = 1 - std::pow(args.beta1, args.step), second = 1 - std::pow(args.beta2, args.step);
  const Tensor expected = weight.cpu().to(at::kDouble) * (1 - args.lr * args.weight_decay) -
                          (m / first) / ((v / second).sqrt() + args.eps) * args.lr;
  b(kernels::adamw, {{weight, grad, exp_avg, exp_avg_sq, std::nullopt, args, std::nullopt}});
  check("weight", weight, expected);
  check("exp_avg", exp_avg, m);
  check("exp_avg_sq", exp_avg_sq, v);

  Tensor words = at::zeros({kernels::exact_words}, at::TensorOptions().dtype(at::kLong).device(b.device));
  b(kernels::add_squares, {{grad, 0}}, words);
  const Tensor host = words.cpu();
  const kernels::ExactSum sum(
      std::span<const int64_t, kernels::exact_words>(host.const_data_ptr<int64_t>(), kernels::exact_words));
  CHECK(sum.rounded() == Approx(grad.cpu().to(at::kDouble).pow(2).sum().item<double>()).epsilon(1e-12));
}

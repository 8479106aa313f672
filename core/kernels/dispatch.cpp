// Checks the arguments of every kernel in one place, then calls the back end of the tensors' device.
#include <ATen/ops/mm.h>
#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <initializer_list>
#include <string>
#include <string_view>

#include "core/base/error.h"
#include "core/kernels/backend.h"
#include "core/kernels/cpu/long_matmul.h"

namespace pptrain::kernels {
namespace {

// The checks of one call: its kernel's name, for messages, and the device that every tensor must share.
class Checks {
 public:
  Checks(std::string_view kernel, const Tensor& first) : kernel_(kernel), device_(first.device()) {
    if (!device_.is_cpu() && !device_.is_cuda()) {
      fail(fmt::format("no back end for device {}", device_.str()));
    }
  }

  // A contiguous tensor of this type and shape.
  const Checks& dense(std::string_view name, const Tensor& tensor, at::ScalarType type,
                      std::initializer_list<int64_t> shape) const {
    any(name, tensor, type, shape);
    if (!tensor.is_contiguous()) {
      fail(fmt::format("{} must be contiguous", name));
    }
    return *this;
  }

  // The same, whose strides are free but for the last, 1.
  const Checks& strided(std::string_view name, const Tensor& tensor, at::ScalarType type,
                        std::initializer_list<int64_t> shape) const {
    any(name, tensor, type, shape);
    if (tensor.stride(-1) != 1) {
      fail(fmt::format("the last dim of {} must have stride 1, not {}", name, tensor.stride(-1)));
    }
    return *this;
  }

  // A compute tensor with so many dims, which other arguments are measured against.
  const Checks& compute(std::string_view name, const Tensor& tensor, int64_t dims) const {
    if (!tensor.defined() || tensor.dim() != dims) {
      fail(fmt::format("{} must have {} dims", name, dims));
    }
    if (tensor.scalar_type() != at::kFloat && tensor.scalar_type() != at::kBFloat16) {
      fail(fmt::format("{} must be float32 or bfloat16, not {}", name, c10::toString(tensor.scalar_type())));
    }
    return *this;
  }

  const Checks& require(bool holds, std::string_view what) const {
    if (!holds) {
      fail(std::string(what));
    }
    return *this;
  }

 private:
  void any(std::string_view name, const Tensor& tensor, at::ScalarType type,
           std::initializer_list<int64_t> shape) const {
    if (!tensor.defined()) {
      fail(fmt::format("{} is missing", name));
    }
    if (tensor.device() != device_ || tensor.scalar_type() != type ||
        tensor.sizes() != at::IntArrayRef(shape)) {
      fail(fmt::format("{} must be {} [{}] on {}, not {} [{}] on {}", name, c10::toString(type),
                       fmt::join(shape, ", "), device_.str(), c10::toString(tensor.scalar_type()),
                       fmt::join(tensor.sizes().vec(), ", "), tensor.device().str()));
    }
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw Error(fmt::format("kernel {}: {}", kernel_, what));
  }

  std::string_view kernel_;
  at::Device device_;
};

void check_rope(const Checks& checks, const Tensor& x, const RopeTable& rope, const Tensor& positions) {
  const int64_t max_position = rope.cos.defined() ? rope.cos.size(0) : 0;
  checks.require(x.size(2) % 2 == 0, "head_dim must be even")
      .dense("rope.cos", rope.cos, at::kFloat, {max_position, x.size(2) / 2})
      .dense("rope.sin", rope.sin, at::kFloat, {max_position, x.size(2) / 2})
      .dense("positions", positions, at::kInt, {x.size(0)});
}

}  // namespace

// A back end is a namespace with one function of each name.
#define PPTRAIN_DISPATCH(tensor, function, ...) \
  ((tensor).is_cuda() ? cuda::function(__VA_ARGS__) : cpu::function(__VA_ARGS__))

void rms_norm(const Tensor& x, const Tensor& weight, double eps, Tensor& y, Tensor& rstd) {
  const Checks checks = Checks("rms_norm", x).compute("x", x, 2);
  const int64_t rows = x.size(0);
  const int64_t dim = x.size(1);
  checks.dense("x", x, x.scalar_type(), {rows, dim})
      .dense("weight", weight, at::kFloat, {dim})
      .dense("y", y, x.scalar_type(), {rows, dim})
      .dense("rstd", rstd, at::kFloat, {rows});
  PPTRAIN_DISPATCH(x, rms_norm, x, weight, eps, y, rstd);
}

void add_rms_norm(const Tensor& x, const Tensor& delta, const Tensor& weight, double eps, Tensor& sum,
                  Tensor& y, Tensor& rstd) {
  const Checks checks = Checks("add_rms_norm", x).compute("x", x, 2);
  const int64_t rows = x.size(0);
  const int64_t dim = x.size(1);
  checks.dense("x", x, x.scalar_type(), {rows, dim})
      .dense("delta", delta, x.scalar_type(), {rows, dim})
      .dense("weight", weight, at::kFloat, {dim})
      .dense("sum", sum, x.scalar_type(), {rows, dim})
      .dense("y", y, x.scalar_type(), {rows, dim})
      .dense("rstd", rstd, at::kFloat, {rows});
  PPTRAIN_DISPATCH(x, add_rms_norm, x, delta, weight, eps, sum, y, rstd);
}

void rms_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& weight, const Tensor& rstd,
                       const std::optional<Tensor>& residual_grad, Tensor& dx, Tensor& weight_grad) {
  const Checks checks = Checks("rms_norm_backward", x).compute("x", x, 2);
  const int64_t rows = x.size(0);
  const int64_t dim = x.size(1);
  checks.dense("x", x, x.scalar_type(), {rows, dim})
      .dense("dy", dy, x.scalar_type(), {rows, dim})
      .dense("weight", weight, at::kFloat, {dim})
      .dense("rstd", rstd, at::kFloat, {rows})
      .dense("dx", dx, x.scalar_type(), {rows, dim})
      .dense("weight_grad", weight_grad, at::kFloat, {dim});
  if (residual_grad) {
    checks.dense("residual_grad", *residual_grad, x.scalar_type(), {rows, dim});
  }
  PPTRAIN_DISPATCH(x, rms_norm_backward, dy, x, weight, rstd, residual_grad, dx, weight_grad);
}

void norm_rope(const Tensor& x, const std::optional<Tensor>& weight, double eps, const RopeTable& rope,
               const Tensor& positions, Tensor& y, Tensor& rstd) {
  const Checks checks = Checks("norm_rope", x).compute("x", x, 3);
  const auto shape = {x.size(0), x.size(1), x.size(2)};
  checks.strided("x", x, x.scalar_type(), shape).strided("y", y, x.scalar_type(), shape);
  check_rope(checks, x, rope, positions);
  if (weight) {
    checks.dense("weight", *weight, at::kFloat, {x.size(2)})
        .dense("rstd", rstd, at::kFloat, {x.size(0), x.size(1)});
  }
  PPTRAIN_DISPATCH(x, norm_rope, x, weight, eps, rope, positions, y, rstd);
}

void norm_rope_backward(const Tensor& dy, const Tensor& x, const std::optional<Tensor>& weight,
                        const Tensor& rstd, const RopeTable& rope, const Tensor& positions, Tensor& dx,
                        const std::optional<Tensor>& weight_grad) {
  const Checks checks = Checks("norm_rope_backward", dy).compute("dy", dy, 3);
  const auto shape = {dy.size(0), dy.size(1), dy.size(2)};
  checks.strided("dy", dy, dy.scalar_type(), shape).strided("dx", dx, dy.scalar_type(), shape);
  check_rope(checks, dy, rope, positions);
  if (weight) {
    checks.require(weight_grad.has_value(), "weight_grad is missing")
        .strided("x", x, dy.scalar_type(), shape)
        .dense("weight", *weight, at::kFloat, {dy.size(2)})
        .dense("weight_grad", *weight_grad, at::kFloat, {dy.size(2)})
        .dense("rstd", rstd, at::kFloat, {dy.size(0), dy.size(1)});
  }
  PPTRAIN_DISPATCH(dy, norm_rope_backward, dy, x, weight, rstd, rope, positions, dx, weight_grad);
}

void swiglu(const Tensor& gate_up, Tensor& y) {
  Checks("swiglu", y)
      .compute("y", y, 2)
      .dense("y", y, y.scalar_type(), {y.size(0), y.size(1)})
      .dense("gate_up", gate_up, y.scalar_type(), {y.size(0), 2 * y.size(1)});
  PPTRAIN_DISPATCH(y, swiglu, gate_up, y);
}

void swiglu_backward(const Tensor& dy, const Tensor& gate_up, Tensor& dgate_up) {
  Checks("swiglu_backward", dy)
      .compute("dy", dy, 2)
      .dense("dy", dy, dy.scalar_type(), {dy.size(0), dy.size(1)})
      .dense("gate_up", gate_up, dy.scalar_type(), {dy.size(0), 2 * dy.size(1)})
      .dense("dgate_up", dgate_up, dy.scalar_type(), {dy.size(0), 2 * dy.size(1)});
  PPTRAIN_DISPATCH(dy, swiglu_backward, dy, gate_up, dgate_up);
}

void cross_entropy(Tensor& logits, const Tensor& labels, Tensor& loss, bool want_gradient) {
  const Checks checks = Checks("cross_entropy", logits).compute("logits", logits, 2);
  const int64_t rows = logits.size(0);
  checks.dense("logits", logits, logits.scalar_type(), {rows, logits.size(1)})
      .dense("labels", labels, at::kLong, {rows})
      .dense("loss", loss, at::kFloat, {rows});
  PPTRAIN_DISPATCH(logits, cross_entropy, logits, labels, loss, want_gradient);
}

void embedding(const Tensor& tokens, const Tensor& weight, Tensor& out) {
  Checks("embedding", weight)
      .compute("weight", weight, 2)
      .dense("weight", weight, weight.scalar_type(), {weight.size(0), weight.size(1)})
      .dense("tokens", tokens, at::kLong, {tokens.numel()})
      .dense("out", out, weight.scalar_type(), {tokens.numel(), weight.size(1)});
  PPTRAIN_DISPATCH(weight, embedding, tokens, weight, out);
}

void embedding_backward(const Tensor& tokens, const Tensor& dy, Tensor& weight_grad) {
  const Checks checks = Checks("embedding_backward", dy).compute("dy", dy, 2);
  checks.dense("dy", dy, dy.scalar_type(), {dy.size(0), dy.size(1)})
      .dense("tokens", tokens, at::kLong, {dy.size(0)})
      .require(weight_grad.dim() == 2, "weight_grad must have 2 dims")
      .dense("weight_grad", weight_grad, at::kFloat, {weight_grad.size(0), dy.size(1)});
  PPTRAIN_DISPATCH(dy, embedding_backward, tokens, dy, weight_grad);
}

// ATen's product serves every device; the CPU has a better one for some shapes.
void matmul(const Tensor& a, const Tensor& b, Tensor& out) {
  const Checks checks = Checks("matmul", a).compute("a", a, 2).compute("b", b, 2);
  checks.dense("a", a, a.scalar_type(), {a.size(0), a.size(1)})
      .dense("b", b, a.scalar_type(), {a.size(1), b.size(1)})
      .dense("out", out, a.scalar_type(), {a.size(0), b.size(1)});
  if (!a.device().is_cpu() || !cpu::long_matmul(a, b, out)) {
    at::mm_out(out, a, b);
  }
}

void accumulate_weight_gradient(const Tensor& dy, const Tensor& x, Tensor& weight_grad) {
  const Checks checks = Checks("accumulate_weight_gradient", dy).compute("dy", dy, 2).compute("x", x, 2);
  checks.dense("dy", dy, dy.scalar_type(), {dy.size(0), dy.size(1)})
      .dense("x", x, dy.scalar_type(), {dy.size(0), x.size(1)})
      .dense("weight_grad", weight_grad, at::kFloat, {dy.size(1), x.size(1)});
  PPTRAIN_DISPATCH(dy, accumulate_weight_gradient, dy, x, weight_grad);
}

void accumulate_bias_gradient(const Tensor& dy, Tensor& bias_grad) {
  Checks("accumulate_bias_gradient", dy)
      .compute("dy", dy, 2)
      .dense("dy", dy, dy.scalar_type(), {dy.size(0), dy.size(1)})
      .dense("bias_grad", bias_grad, at::kFloat, {dy.size(1)});
  PPTRAIN_DISPATCH(dy, accumulate_bias_gradient, dy, bias_grad);
}

void adamw(Tensor& weight, const Tensor& grad, Tensor& exp_avg, Tensor& exp_avg_sq,
           const std::optional<Tensor>& compute, const AdamWArgs& args,
           const std::optional<AdamWPrevious>& previous) {
  const Checks checks("adamw", weight);
  const int64_t size = weight.numel();
  checks.dense("weight", weight, at::kFloat, {size})
      .dense("grad", grad, at::kFloat, {size})
      .dense("exp_avg", exp_avg, at::kFloat, {size})
      .dense("exp_avg_sq", exp_avg_sq, at::kFloat, {size})
      .require(args.step >= 1, "steps are counted from 1");
  if (compute) {
    checks.dense("compute", *compute, at::kBFloat16, {size});
  }
  if (previous) {
    checks.dense("previous.weight", previous->weight, at::kFloat, {size})
        .dense("previous.exp_avg", previous->exp_avg, at::kFloat, {size})
        .dense("previous.exp_avg_sq", previous->exp_avg_sq, at::kFloat, {size});
  }
  PPTRAIN_DISPATCH(weight, adamw, weight, grad, exp_avg, exp_avg_sq, compute, args, previous);
}

void sum_of_squares(const Tensor& x, Tensor out) {
  Checks("sum_of_squares", x)
      .require(x.scalar_type() == at::kFloat && x.is_contiguous(), "x must be contiguous float32")
      .dense("out", out, at::kDouble, {});
  PPTRAIN_DISPATCH(x, sum_of_squares, x, out);
}

#undef PPTRAIN_DISPATCH

}  // namespace pptrain::kernels

#include "core/nn/rms_norm.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <optional>

#include "core/kernels/kernels.h"

namespace pptrain::nn {

RmsNorm::RmsNorm(ParameterGroup& group, const std::string& name, int64_t dim, double eps,
                 const TensorCut& cut)
    : eps_(eps),
      weight_(&group.add({cut.copied({.name = name + ".weight", .shape = {dim}, .role = Role::norm})})) {}

at::Tensor RmsNorm::forward(const at::Tensor& x, at::Tensor delta, Saved& saved) const {
  at::Tensor y = at::empty_like(x);
  saved.rstd = at::empty({x.size(0)}, x.options().dtype(at::kFloat));
  if (delta.defined()) {
    kernels::add_rms_norm(x, delta, weight_->compute, eps_, delta, y, saved.rstd);
    saved.x = delta;
  } else {
    kernels::rms_norm(x, weight_->compute, eps_, y, saved.rstd);
    saved.x = x;
  }
  return y;
}

at::Tensor RmsNorm::backward(const Saved& saved, const at::Tensor& dy, const at::Tensor& residual_grad) {
  at::Tensor dx = dy;
  at::Tensor weight_grad = weight_->grad_or_scratch();
  kernels::rms_norm_backward(dy, saved.x, weight_->compute, saved.rstd,
                             residual_grad.defined() ? std::optional(residual_grad) : std::nullopt, dx,
                             weight_grad);
  return dx;
}

}  // namespace pptrain::nn

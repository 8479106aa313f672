#include "core/nn/norm.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <ATen/ops/sub.h>

#include <optional>
#include <tuple>

#include "core/kernels/dry_run.h"
#include "core/kernels/kernels.h"
#include "core/nn/weight_grad_queue.h"

namespace pptrain::nn {
namespace {

using at::Tensor;

// x as LibTorch's LayerNorm takes it with float32 weights: its CUDA kernels take one type alone.
Tensor operand_of(const Tensor& x) {
  if (!x.is_cuda() && !kernels::dry_gpu().is_gpu()) return x;
  const Tensor operand = x.to(at::kFloat);
  if (!operand.is_same(x)) kernels::record(kernels::moving(x, operand));
  return operand;
}

Tensor rounded_to(at::ScalarType type, const Tensor& y) {
  const Tensor result = y.to(type);
  if (!result.is_same(y)) kernels::record(kernels::moving(y, result));
  return result;
}

}  // namespace

ParameterSpec norm_spec(const std::string& name, int64_t dim, NormKind kind) {
  return {.name = name + ".weight",
          .shape = {dim},
          .role = Role::norm,
          .norm_start = kind == NormKind::rms_plus_one ? 0.0 : 1.0};
}

Tensor norm_factor(const Weight& weight, NormKind kind) {
  if (kind != NormKind::rms_plus_one) return weight.compute;
  Tensor factor = weight.compute.add(1);
  kernels::record(kernels::moving(weight.compute, factor));
  return factor;
}

Norm::Norm(ParameterGroup& group, const std::string& name, int64_t dim, NormKind kind, double eps,
           const TensorShard& cut)
    : kind_(kind), eps_(eps), weight_(&group.add({cut.copied(norm_spec(name, dim, kind))})) {
  if (kind == NormKind::layer) {
    bias_ = &group.add(
        {cut.copied({.name = name + ".bias", .shape = {dim}, .role = Role::norm, .norm_start = 0})});
  }
}

Tensor Norm::forward(const Tensor& x, Tensor delta, Saved& saved) const {
  if (kind_ == NormKind::layer) {
    if (delta.defined()) kernels::add(delta, x);
    saved.x = delta.defined() ? delta : x;
    return layer_forward(saved);
  }
  Tensor y = at::empty_like(x);
  saved.rstd = at::empty({x.size(0)}, x.options().dtype(at::kFloat));
  const Tensor factor = norm_factor(*weight_, kind_);
  if (delta.defined()) {
    kernels::add_rms_norm(x, delta, factor, eps_, delta, y, saved.rstd);
    saved.x = delta;
  } else {
    kernels::rms_norm(x, factor, eps_, y, saved.rstd);
    saved.x = x;
  }
  return y;
}

Tensor Norm::backward(const Saved& saved, const Tensor& dy, const Tensor& residual_grad) {
  if (kind_ == NormKind::layer) return layer_backward(saved, dy, residual_grad);
  Tensor dx = dy, weight_grad = weight_->grad_or_scratch();
  kernels::rms_norm_backward(dy, saved.x, norm_factor(*weight_, kind_), saved.rstd,
                             residual_grad.defined() ? std::optional(residual_grad) : std::nullopt, dx,
                             weight_grad);
  return dx;
}

Tensor Norm::layer_forward(Saved& saved) const {
  const Tensor x = operand_of(saved.x);
  Tensor y;
  if (kernels::is_dry(x)) {
    y = at::empty_like(x);
    saved.mean = at::empty({x.size(0), 1}, x.options().dtype(at::kFloat));
    saved.rstd = at::empty_like(saved.mean);
  } else {
    std::tie(y, saved.mean, saved.rstd) =
        at::native_layer_norm(x, {x.size(1)}, weight_->compute, bias_->compute, eps_);
  }
  kernels::record(kernels::moving(x, weight_->compute, bias_->compute, y, saved.mean, saved.rstd));
  return rounded_to(saved.x.scalar_type(), y);
}

// LibTorch sums the weight's and the bias's gradients in as many parts as there are threads. Our kernel,
// which takes rows in order, sums them instead.
Tensor Norm::layer_backward(const Saved& saved, const Tensor& dy, const Tensor& residual_grad) {
  if (!weight_->frozen()) {
    const Tensor slopes = at::sub(saved.x, saved.mean).mul_(saved.rstd).mul_(dy);  // float32 [rows, dim]
    kernels::record(kernels::moving(saved.x, saved.mean, saved.rstd, dy, slopes));
    kernels::accumulate_bias_gradient(slopes, weight_->grad);
  }
  add_bias_gradient(*bias_, dy);
  const Tensor x = operand_of(saved.x), g = operand_of(dy);
  Tensor dx;
  if (kernels::is_dry(x)) {
    dx = at::empty_like(x);
  } else {
    dx = std::get<0>(at::native_layer_norm_backward(g, x, {x.size(1)}, saved.mean, saved.rstd,
                                                    weight_->compute, bias_->compute, {true, false, false}));
  }
  kernels::record(kernels::moving(g, x, saved.mean, saved.rstd, weight_->compute, dx));
  dx = rounded_to(dy.scalar_type(), dx);
  if (residual_grad.defined()) kernels::add(dx, residual_grad);
  return dx;
}

}  // namespace pptrain::nn

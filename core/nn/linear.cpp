#include "core/nn/linear.h"

#include <ATen/ops/empty.h>

#include <optional>

#include "core/kernels/kernels.h"

namespace pptrain::nn {

Linear::Linear(ParameterGroup& group, int64_t in_features, std::vector<LinearPart> parts, bool bias,
               double init_std)
    : in_(in_features), out_(0) {
  std::vector<ParameterSpec> weights;
  std::vector<ParameterSpec> biases;
  for (const LinearPart& part : parts) {
    out_ += part.out_features;
    weights.push_back(
        {.name = part.name + ".weight", .shape = {part.out_features, in_}, .init_std = init_std});
    biases.push_back(
        {.name = part.name + ".bias", .shape = {part.out_features}, .role = Role::bias, .init = Init::zeros});
  }
  weight_ = &group.add(std::move(weights));
  if (bias) {
    bias_ = &group.add(std::move(biases));
  }
}

at::Tensor Linear::forward(const at::Tensor& x) const {
  at::Tensor y = at::empty({x.size(0), out_}, x.options());
  kernels::linear(x, weight_->compute, bias_ == nullptr ? std::nullopt : std::optional(bias_->compute), y);
  return y;
}

at::Tensor Linear::backward_input(const at::Tensor& dy) const {
  at::Tensor dx = at::empty({dy.size(0), in_}, dy.options());
  kernels::matmul(dy, weight_->compute, dx);
  return dx;
}

void Linear::backward_weight(const at::Tensor& x, const at::Tensor& dy) {
  kernels::accumulate_weight_gradient(dy, x, weight_->grad);
  if (bias_ != nullptr) {
    kernels::accumulate_bias_gradient(dy, bias_->grad);
  }
}

}  // namespace pptrain::nn

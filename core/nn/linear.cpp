#include "core/nn/linear.h"

#include <ATen/ops/empty.h>

#include <optional>
#include <utility>

#include "core/kernels/kernels.h"
#include "core/nn/weight_grad_queue.h"

namespace pptrain::nn {
namespace {

std::vector<ParameterSpec> weights_of(const std::vector<LinearPart>& parts, int64_t in_features,
                                      double init_std) {
  std::vector<ParameterSpec> specs;
  for (const LinearPart& part : parts) specs.push_back(weight_spec(part, in_features, init_std));
  return specs;
}

std::vector<ParameterSpec> biases_of(const std::vector<LinearPart>& parts, bool bias) {
  std::vector<ParameterSpec> specs;
  if (!bias) return specs;
  for (const LinearPart& part : parts) specs.push_back(bias_spec(part));
  return specs;
}

}  // namespace

ParameterSpec weight_spec(const LinearPart& part, int64_t in_features, double init_std) {
  return {.name = part.name + ".weight", .shape = {part.out_features, in_features}, .init_std = init_std};
}

ParameterSpec bias_spec(const LinearPart& part) {
  return {.name = part.name + ".bias", .shape = {part.out_features}, .role = Role::bias, .init = Init::zeros};
}

Linear::Linear(ParameterGroup& group, int64_t in_features, std::vector<LinearPart> parts, bool bias,
               double init_std)
    : Linear(group, weights_of(parts, in_features, init_std), biases_of(parts, bias)) {}

Linear::Linear(ParameterGroup& group, std::vector<ParameterSpec> weights, std::vector<ParameterSpec> biases) {
  for (const ParameterSpec& weight : weights) {
    const std::vector<int64_t> shape = weight.local_shape();
    out_ += shape[0];
    in_ = shape[1];
  }
  weight_ = &group.add(std::move(weights));
  weight_->grad_by_products = true;
  if (!biases.empty()) bias_ = &group.add(std::move(biases));
}

at::Tensor Linear::forward(const at::Tensor& x) const {
  at::Tensor y = at::empty({x.size(0), out_}, x.options());
  forward(x, y);
  return y;
}

void Linear::forward(const at::Tensor& x, at::Tensor y) const {
  kernels::linear(x, weight_->compute, bias_ == nullptr ? std::nullopt : std::optional(bias_->compute), y);
}

at::Tensor Linear::backward_input(const at::Tensor& dy) const {
  at::Tensor dx = at::empty({dy.size(0), in_}, dy.options());
  backward_input(dy, dx);
  return dx;
}

void Linear::backward_input(const at::Tensor& dy, at::Tensor dx) const {
  kernels::matmul(dy, weight_->compute, dx);
}

void Linear::backward_weight(const at::Tensor& x, const at::Tensor& dy) {
  add_weight_gradient(*weight_, dy, x);
  if (bias_ != nullptr) {
    kernels::accumulate_bias_gradient(dy, bias_->grad);
  }
}

}  // namespace pptrain::nn

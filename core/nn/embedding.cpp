#include "core/nn/embedding.h"

#include <ATen/ops/empty.h>

#include "core/kernels/kernels.h"

namespace pptrain::nn {

Embedding::Embedding(ParameterGroup& group, const std::string& name, int64_t vocab, int64_t dim,
                     double init_std)
    : dim_(dim),
      weight_(&group.add({{.name = name + ".weight",
                           .shape = {vocab, dim},
                           .role = Role::embedding,
                           .init_std = init_std}})) {}

at::Tensor Embedding::forward(const at::Tensor& tokens) const {
  at::Tensor out = at::empty({tokens.numel(), dim_}, weight_->compute.options());
  kernels::embedding(tokens, weight_->compute, out);
  return out;
}

void Embedding::backward_weight(const at::Tensor& tokens, const at::Tensor& dy) {
  kernels::embedding_backward(tokens, dy, weight_->grad);
}

}  // namespace pptrain::nn

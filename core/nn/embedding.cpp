#include "core/nn/embedding.h"

#include <ATen/ops/empty.h>

#include <utility>

#include "core/kernels/kernels.h"
#include "core/kernels/vocabulary.h"

namespace pptrain::nn {

Embedding::Embedding(ParameterGroup& group, const std::string& name, int64_t vocab, int64_t dim,
                     double init_std, std::shared_ptr<const Region> region)
    : vocab_(vocab),
      dim_(dim),
      region_(std::move(region)),
      weight_(&group.add({region_->cut().cut(
          {.name = name + ".weight", .shape = {vocab, dim}, .role = Role::embedding, .init_std = init_std},
          0)})) {}

at::Tensor Embedding::forward(const at::Tensor& tokens) const {
  at::Tensor out = at::empty({tokens.numel(), dim_}, weight_->compute.options());
  if (region_->alone()) {
    kernels::embedding(tokens, weight_->compute, out);
    return out;
  }
  const TensorCut& cut = region_->cut();
  kernels::embedding_part(tokens, weight_->compute, {.first = cut.begin(vocab_, cut.rank), .vocab = vocab_},
                          out);
  return region_->leave(out);
}

void Embedding::backward_weight(const at::Tensor& tokens, const at::Tensor& dy) {
  if (region_->alone()) {
    kernels::embedding_backward(tokens, dy, weight_->grad);
    return;
  }
  const TensorCut& cut = region_->cut();
  kernels::embedding_part_backward(tokens, region_->enter(dy, tokens.numel()),
                                   {.first = cut.begin(vocab_, cut.rank), .vocab = vocab_}, weight_->grad);
}

}  // namespace pptrain::nn

// Token embedding.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

#include "core/nn/parameter.h"
#include "core/nn/region.h"

namespace pptrain::nn {

// The ranks of the region share out the vocabulary, and the rows of the result. Each looks up the tokens that
// it holds; the sum over ranks is exact, since all terms but one are zero.
class Embedding {
 public:
  // Declares `<name>.weight`.
  Embedding(ParameterGroup& group, const std::string& name, int64_t vocab, int64_t dim, double init_std,
            std::shared_ptr<const Region> region = std::make_shared<Region>());

  at::Tensor forward(const at::Tensor& tokens) const;  // int64 [tokens] -> T [share, dim]
  // dy: T [share, dim].
  void backward_weight(const at::Tensor& tokens, const at::Tensor& dy);

  Weight& weight() { return *weight_; }

 private:
  int64_t vocab_, dim_;
  std::shared_ptr<const Region> region_;
  Weight* weight_;
};

}  // namespace pptrain::nn

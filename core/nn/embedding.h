// Token embedding.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "core/nn/parameter.h"

namespace pptrain::nn {

class Embedding {
 public:
  Embedding(ParameterGroup& group, const std::string& name, int64_t vocab, int64_t dim,
            double init_std);  // `<name>.weight`

  at::Tensor forward(const at::Tensor& tokens) const;  // int64 [tokens] -> T [tokens, dim]
  void backward_weight(const at::Tensor& tokens, const at::Tensor& dy);

  Weight& weight() { return *weight_; }

 private:
  int64_t dim_;
  Weight* weight_;
};

}  // namespace pptrain::nn

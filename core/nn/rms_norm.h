// RMSNorm with explicit passes, alone or fused with the residual addition before it.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "core/nn/parameter.h"
#include "core/nn/region.h"

namespace pptrain::nn {

class RmsNorm {
 public:
  struct Saved {
    at::Tensor x;     // T [rows, dim]: x + delta, the residual stream; x itself without delta
    at::Tensor rstd;  // float32 [rows]
  };

  // Declares `<name>.weight`. `cut`: the ranks that share out the rows, and so hold a copy each.
  RmsNorm(ParameterGroup& group, const std::string& name, int64_t dim, double eps, const TensorCut& cut = {});

  // T [rows, dim]. delta may be undefined. Its memory is reused for the sum: the caller gives it up.
  at::Tensor forward(const at::Tensor& x, at::Tensor delta, Saved& saved) const;

  // Gradient of the residual stream: residual_grad (may be undefined) + d norm. Adds the weight's gradient.
  // The result takes the memory of dy: the caller gives it up. residual_grad is only read (a weight gradient
  // queue may hold it).
  at::Tensor backward(const Saved& saved, const at::Tensor& dy, const at::Tensor& residual_grad);

 private:
  double eps_;
  Weight* weight_;
};

}  // namespace pptrain::nn

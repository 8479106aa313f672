// Linear layer with explicit passes. y = x W^T + b.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <string>
#include <vector>

#include "core/nn/parameter.h"
#include "core/nn/weight_grad_queue.h"

namespace pptrain::nn {

// One output block of a linear layer: its parameter prefix ("layers.3.attn.q") and rows.
struct LinearPart {
  std::string name;
  int64_t out_features = 0;
};

class Linear final : public HasWeightGradient {
 public:
  // Declares `<name>.weight` [out, in] (and `<name>.bias` [out]) for each part; the parts' outputs are
  // concatenated.
  Linear(ParameterGroup& group, int64_t in_features, std::vector<LinearPart> parts, bool bias,
         double init_std);

  at::Tensor forward(const at::Tensor& x) const;          // T [rows, in] -> T [rows, out]
  at::Tensor backward_input(const at::Tensor& dy) const;  // T [rows, out] -> T [rows, in]
  // Weight (and bias) main gradients += those of (x, dy). x: T [rows, in]; dy: T [rows, out], contiguous
  // both.
  void backward_weight(const at::Tensor& x, const at::Tensor& dy);
  void backward_weight(std::span<const at::Tensor> operands) override {  // x, dy
    backward_weight(operands[0], operands[1]);
  }

  int64_t in_features() const { return in_; }
  int64_t out_features() const { return out_; }
  Weight& weight() { return *weight_; }

 private:
  int64_t in_, out_;
  Weight* weight_;
  Weight* bias_ = nullptr;
};

}  // namespace pptrain::nn

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

// What `<name>.weight` [out, in] and `<name>.bias` [out] are.
ParameterSpec weight_spec(const LinearPart& part, int64_t in_features, double init_std);
ParameterSpec bias_spec(const LinearPart& part);

class Linear final : public HasWeightGradient {
 public:
  // Declares `<name>.weight` [out, in] (and `<name>.bias` [out]) for each part; the parts' outputs are
  // concatenated.
  Linear(ParameterGroup& group, int64_t in_features, std::vector<LinearPart> parts, bool bias,
         double init_std);
  // The same of weights that may be cut; the layer computes with their local shapes. `biases`: none, or one
  // for each weight.
  Linear(ParameterGroup& group, std::vector<ParameterSpec> weights, std::vector<ParameterSpec> biases);

  at::Tensor forward(const at::Tensor& x) const;          // T [rows, in] -> T [rows, out]
  void forward(const at::Tensor& x, at::Tensor y) const;  // the same, into y
  at::Tensor backward_input(const at::Tensor& dy) const;  // T [rows, out] -> T [rows, in]
  void backward_input(const at::Tensor& dy, at::Tensor dx) const;
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
  int64_t in_ = 0, out_ = 0;
  Weight* weight_ = nullptr;
  Weight* bias_ = nullptr;
};

}  // namespace pptrain::nn

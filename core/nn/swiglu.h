// Gated feed-forward: down(silu(gate(x)) * up(x)).
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "core/nn/linear.h"
#include "core/nn/parameter.h"
#include "core/nn/weight_grad_queue.h"

namespace pptrain::nn {

class SwiGlu {
 public:
  struct Saved {
    at::Tensor x;        // T [rows, hidden]
    at::Tensor gate_up;  // T [rows, 2 * intermediate]
    at::Tensor act;      // T [rows, intermediate]: operand of the down weight gradient
  };

  // Declares `<name>.{gate,up,down}.weight` (and biases).
  SwiGlu(ParameterGroup& group, const std::string& name, int64_t hidden, int64_t intermediate, bool bias,
         double init_std, double down_init_std);

  // The two halves of the forward pass: what fills `saved`, and down's product with saved.act, T [rows,
  // hidden].
  void activate(const at::Tensor& x, Saved& saved) const;
  at::Tensor project(const Saved& saved) const { return down_.forward(saved.act); }
  at::Tensor forward(const at::Tensor& x, Saved& saved) const;  // T [rows, hidden] -> T [rows, hidden]
  at::Tensor backward_input(Saved& saved, const at::Tensor& dy, WeightGradQueue& queue);

 private:
  Linear gate_up_;
  Linear down_;
};

}  // namespace pptrain::nn

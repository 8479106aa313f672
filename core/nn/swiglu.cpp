#include "core/nn/swiglu.h"

#include <ATen/ops/empty.h>

#include <utility>

#include "core/kernels/kernels.h"

namespace pptrain::nn {

SwiGlu::SwiGlu(ParameterGroup& group, const std::string& name, int64_t hidden, int64_t intermediate,
               bool bias, double init_std, double down_init_std)
    : gate_up_(group, hidden, {{name + ".gate", intermediate}, {name + ".up", intermediate}}, bias, init_std),
      down_(group, intermediate, {{name + ".down", hidden}}, bias, down_init_std) {}

void SwiGlu::activate(const at::Tensor& x, Saved& saved) const {
  saved.x = x;
  saved.gate_up = gate_up_.forward(x);
  saved.act = at::empty({x.size(0), down_.in_features()}, x.options());
  kernels::swiglu(saved.gate_up, saved.act);
}

at::Tensor SwiGlu::forward(const at::Tensor& x, Saved& saved) const {
  activate(x, saved);
  return project(saved);
}

at::Tensor SwiGlu::backward_input(Saved& saved, const at::Tensor& dy, WeightGradQueue& queue) {
  queue.push(down_, std::move(saved.act), dy);
  at::Tensor d_gate_up = std::move(saved.gate_up);
  kernels::swiglu_backward(down_.backward_input(dy), d_gate_up, d_gate_up);
  at::Tensor dx = gate_up_.backward_input(d_gate_up);
  queue.push(gate_up_, std::move(saved.x), std::move(d_gate_up));
  return dx;
}

}  // namespace pptrain::nn

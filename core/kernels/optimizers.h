// Kernels of the optimizers besides AdamW. The conventions are those of kernels.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "core/kernels/kernel.h"

namespace pptrain::kernels {

struct LionArgs {
  double lr = 0;
  double beta1 = 0.9;
  double beta2 = 0.99;
  double weight_decay = 0;  // decoupled: weight -= lr * weight_decay * weight
  double grad_scale = 1;    // multiplies the gradient first
};

// Receives what a step overwrites, so that it can be taken back. Float32, of the weight's size.
struct LionPrevious {
  at::Tensor weight, exp_avg;
};

// What one call of lion steps by one set of scalars. All float32 of one size; `compute`, where given,
// receives the new weight rounded to bfloat16.
struct LionPart {
  at::Tensor weight, grad, exp_avg;
  std::optional<at::Tensor> compute;
  LionArgs args;
  std::optional<LionPrevious> previous;

  const at::Tensor& first() const { return weight; }
};

// Lion (Chen et al., arXiv 2302.06675, algorithm 2) of all parts (at least one): the weight decays and moves
// by lr against the sign of beta1 exp_avg + (1 - beta1) g, which is 0 where that is 0 or NaN; then exp_avg =
// beta2 exp_avg + (1 - beta2) g.
inline Kernel<void(const std::vector<LionPart>& parts)> lion{"lion"};

struct MomentumArgs {
  double beta = 0.95;
  double grad_scale = 1;  // multiplies the gradient first
};

// next = average + (1 - beta) (g - average), rounded to T: an exponential average of gradients, and taken
// once more with the same gradient, Nesterov's look ahead. average, grad: float32 of one size; next: T of
// that size, or `average` itself.
inline Kernel<void(const at::Tensor& average, const at::Tensor& grad, at::Tensor& next,
                   const MomentumArgs& args)>
    momentum{"momentum"};

struct DescentArgs {
  double decay = 1;  // multiplies the weight first
  double step = 0;
};

// weight = decay weight - step direction. weight: float32; direction: T, both of one size; `compute`, where
// given, receives the new weight rounded to bfloat16.
inline Kernel<void(at::Tensor& weight, const at::Tensor& direction, const std::optional<at::Tensor>& compute,
                   const DescentArgs& args)>
    descend{"descend"};

}  // namespace pptrain::kernels

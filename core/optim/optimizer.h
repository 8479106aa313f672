// What the trainer and the checkpoint writer know of an optimizer.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/nn/parameter.h"

namespace pptrain::optim {

// One tensor of an optimizer's state, as checkpoints name it: by the parameter it belongs to, within a file
// per kind.
struct StateTensor {
  std::string file;                // "adamw.exp_avg"
  const nn::Parameter* parameter;  // of the optimizer's store
  at::Tensor tensor;  // float32, the parameter's shape, contiguous: the state itself, to be read or filled
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;

  // One step of every parameter at this learning rate, by its main gradient times grad_scale. Masters and
  // compute weights are new afterwards; gradients are left as they are.
  virtual void step(double lr, double grad_scale) = 0;

  virtual std::vector<StateTensor> state() = 0;

  // From now on each step keeps what it overwrites, for undo(): masters and state once more.
  virtual void keep_previous() = 0;
  // Takes the last step back, bit for bit: masters, compute weights, state and step count. Once after a step;
  // only with keep_previous(), which must have come before that step.
  virtual void undo() = 0;

  // Steps taken so far. Setting it belongs to filling the state tensors on resume.
  int64_t step_count() const { return steps_; }
  void set_step(int64_t steps) { steps_ = steps; }

 protected:
  int64_t steps_ = 0;
};

}  // namespace pptrain::optim

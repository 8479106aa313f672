// The formula of an optimizer: what one step does to parameters and their state.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/nn/parameter.h"

namespace pptrain::optim {

// Masters and state of neighbouring slices, flat, in one order.
struct Buffers {
  at::Tensor master;
  std::vector<at::Tensor> state;  // as Update::state_files()
};

// Neighbouring slices of one shard that are stepped alike, the gaps between them included.
struct Run {
  Buffers now;
  at::Tensor grad;
  std::optional<at::Tensor> compute;  // bfloat16: receives the new masters rounded
  std::optional<Buffers> previous;    // receives what is overwritten, if keeps_previous()
  double lr_scale = 1;
  double weight_decay = 0;
  std::span<const nn::Slice> slices;
  int64_t offset = 0;  // of the run in the shard

  // A slice's elements of one of the run's flat tensors.
  at::Tensor part(const at::Tensor& flat, const nn::Slice& slice) const {
    return flat.narrow(0, slice.offset - offset, slice.shape.numel());
  }
};

class Update {
 public:
  virtual ~Update() = default;

  // One value per parameter in each, by the names that checkpoints give them.
  virtual std::vector<std::string> state_files() const = 0;
  virtual at::ScalarType state_type() const { return at::kFloat; }

  // Called once, with all slices of this rank that it will step, in the order of the runs. Collective if
  // steps are.
  virtual void prepare(const std::vector<const nn::Slice*>& /*slices*/) {}

  // One step of all of this rank's runs, by their gradients times grad_scale, at the learning rate lr (times
  // lr_scale); steps are counted from 1. Called also if there are no runs.
  virtual void step(std::span<Run> runs, double lr, double grad_scale, int64_t step) = 0;

  // True if step() writes what it overwrites to Run::previous, which is cheaper than a copy beforehand.
  virtual bool keeps_previous() const { return false; }
};

}  // namespace pptrain::optim

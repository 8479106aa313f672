// What a stage adds up of the losses of its passes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "core/data/microbatch.h"

namespace pptrain::models {

class StageLosses {
 public:
  // Called with the loss of each token of this rank's list, float32 [tokens], after passes without gradients.
  using Listener = std::function<void(const data::Microbatch& data, const at::Tensor& losses)>;
  void hear(Listener listener) { listener_ = std::move(listener); }
  // From now on of_microbatches() knows what training passes add.
  void keep_microbatches() { keeps_microbatches_ = true; }

  // Of a training pass: a float64 scalar on the device.
  void add(int microbatch, const at::Tensor& loss) {
    if (keeps_microbatches_) microbatches_[microbatch] = loss;
    add(loss);
  }
  // Of a pass without gradients: of each token.
  void add_of_tokens(const data::Microbatch& data, const at::Tensor& losses) {
    add(losses.sum(at::kDouble));
    if (listener_) listener_(data, losses);
  }

  // The sum since the last call, or since clear().
  double take();
  void clear() { sum_.reset(); }
  // What each of `count` microbatches added in the last step.
  std::vector<double> of_microbatches(int64_t count) const;

 private:
  void add(const at::Tensor& loss) { sum_ = sum_.defined() ? sum_.add(loss) : loss; }

  at::Tensor sum_;  // undefined when nothing was added
  bool keeps_microbatches_ = false;
  std::map<int, at::Tensor> microbatches_;
  Listener listener_;
};

}  // namespace pptrain::models

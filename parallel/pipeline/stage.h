// What the executor needs of a stage: its passes, and the schedule's other actions on its weights and
// gradients.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "core/base/error.h"
#include "core/data/microbatch.h"
#include "core/nn/parameter.h"
#include "parallel/schedule/action.h"

namespace pptrain::pipeline {

// A slice of a model, which keeps its own saved activations, by microbatch.
class Stage {
 public:
  virtual ~Stage() = default;

  virtual int index() const = 0;
  virtual bool is_first() const = 0;
  virtual bool is_last() const = 0;  // it has the whole head; with a head in parts no stage is

  // A tensor without values, of the type, shape and device that this microbatch has at the stage's
  // boundaries: its input, its output and their gradients, equal on every stage. The executor receives into
  // such tensors.
  virtual at::Tensor empty_boundary(const data::Microbatch& data) const = 0;

  // F. `input` is undefined on the first stage; the result is undefined on the last, which keeps the loss.
  virtual at::Tensor forward(int microbatch, const data::Microbatch& data, at::Tensor input) = 0;

  // Forward without saved activations, for evaluation. The last stage keeps the loss.
  virtual at::Tensor forward_only(const data::Microbatch& data, at::Tensor input) = 0;

  // Last stage: T [rows, vocab] of the tokens that `rows` (int64, places in the token list) names, or of all
  // if it is undefined. Saves no activations. Throws Error on other stages.
  virtual at::Tensor logits(const data::Microbatch& data, at::Tensor input, const at::Tensor& rows) = 0;

  // B: input and weight gradients at once. `dy` is undefined on the last stage, the result on the first.
  virtual at::Tensor backward(int microbatch, at::Tensor dy) = 0;

  // I: the input gradient alone; what W needs (its two operands per weight) stays.
  virtual at::Tensor backward_input(int microbatch, at::Tensor dy) = 0;

  // W: the weight gradients that backward_input of this microbatch left.
  virtual void backward_weight(int microbatch) = 0;

  // A head in parts: the first stage of each rank may have one. The last stage's F then gives T [share,
  // hidden] to all of them, and its backward takes the sum of their terms of the gradient.
  virtual bool has_head_part() const { return false; }
  // S: `h` as above -> this part's statistics, float32 [rows, n]: n = 3, or 4 with label smoothing
  // (core/nn/vocabulary.h).
  virtual at::Tensor head_forward(int /*microbatch*/, const data::Microbatch& /*data*/, at::Tensor /*h*/) {
    throw Error("the stage has no part of a head");
  }
  // A tensor without values for the statistics that another part gives for this microbatch.
  virtual at::Tensor empty_statistics(const data::Microbatch& /*data*/) const {
    throw Error("the stage has no part of a head");
  }
  // T: `statistics` of all parts, float32 [parts, rows, n] -> this part's term of the gradient of `h`;
  // undefined without gradients. The stage keeps the loss.
  virtual at::Tensor head_backward(int /*microbatch*/, const data::Microbatch& /*data*/,
                                   const at::Tensor& /*statistics*/, bool /*with_gradients*/) {
    throw Error("the stage has no part of a head");
  }

  // Last stage, or one with a part of the head: the loss in nats, summed over valid tokens since the last
  // call. Waits for the device.
  virtual double take_loss() = 0;

  // Drops all saved activations, after a failed step.
  virtual void discard() = 0;

  virtual nn::ParameterStore& parameters() = 0;
};

// One pass of a stage, with what the rank's list has next for that stage.
struct Pass {
  schedule::ActionKind kind = schedule::ActionKind::forward;  // F, B, I or W
  std::optional<schedule::ActionKind> next;  // the next F, B or I before a RESHARD or the end of the list
  bool reduce_follows = false;               // REDUCE_GRAD comes before the stage's next pass
};

// parallel/shard implements it for stages that are sharded over ranks. By default nothing is done: the
// weights of a stage without peers are always there, and its gradients are whole. Only settle, finish and
// discard may wait for other ranks.
class WeightActions {
 public:
  virtual ~WeightActions() = default;

  virtual void unshard(std::optional<schedule::ActionKind> /*next*/) {}  // UNSHARD, with Pass::next
  virtual void reshard() {}                                              // RESHARD
  virtual void reduce_grad() {}                                          // REDUCE_GRAD
  virtual void begin_pass(const Pass&) {}                                // F, B, I or W is about to run

  // Before masters may change: waits for gathers under way, which read them.
  virtual void settle() {}
  // The end of the list: waits for what reduce_grad() began.
  virtual void finish() {}
  // Passes are thrown away, and what was gathered for them is stale.
  virtual void discard() {}
};

// A stage of this rank. Both must outlive their users.
struct StageWithWeights {
  Stage& stage;
  WeightActions& weights;
};

}  // namespace pptrain::pipeline

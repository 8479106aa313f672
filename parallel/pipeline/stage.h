// What the executor needs of a piece of a model. The stage keeps its own records of saved tensors, by
// microbatch.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/data/microbatch.h"
#include "core/nn/parameter.h"
#include "parallel/pipeline/weight_actions.h"

namespace pptrain::pipeline {

class Stage {
 public:
  virtual ~Stage() = default;

  virtual int index() const = 0;
  virtual bool is_first() const = 0;
  virtual bool is_last() const = 0;

  // A tensor without values of the type and shape, on the device, of this microbatch's at the stage's
  // boundaries: its input, its output and their gradients, all of one kind on every stage. The executor
  // receives into such tensors.
  virtual at::Tensor empty_boundary(const data::Microbatch& data) const = 0;

  // F. `input` is undefined on the first stage; the result is undefined on the last, which keeps the loss.
  virtual at::Tensor forward(int microbatch, const data::Microbatch& data, at::Tensor input) = 0;

  // Forward without records, for evaluation. The last stage keeps the loss.
  virtual at::Tensor forward_only(const data::Microbatch& data, at::Tensor input) = 0;

  // Last stage: T [rows, vocab] of the tokens that `rows` (int64, places in the token list) names, or of all
  // where it is undefined. Without records. Throws Error on other stages.
  virtual at::Tensor logits(const data::Microbatch& data, at::Tensor input, const at::Tensor& rows) = 0;

  // B: input and weight gradients at once. `dy` is undefined on the last stage, the result on the first.
  virtual at::Tensor backward(int microbatch, at::Tensor dy) = 0;

  // I: the input gradient alone; what W needs (its two operands per weight) stays.
  virtual at::Tensor backward_input(int microbatch, at::Tensor dy) = 0;

  // W: the weight gradients that backward_input of this microbatch left.
  virtual void backward_weight(int microbatch) = 0;

  // Last stage: the loss in nats, summed over valid tokens since the last call. Waits for the device.
  virtual double take_loss() = 0;

  // Drops every record, after a failed step.
  virtual void discard() = 0;

  virtual nn::ParameterStore& parameters() = 0;
};

// A stage of this rank. Both must outlive their users.
struct StageWithWeights {
  Stage& stage;
  WeightActions& weights;
};

}  // namespace pptrain::pipeline

// What a schedule asks of a stage's weights and gradients, beside the passes themselves.
#pragma once

#include <optional>

#include "parallel/schedule/action.h"

namespace pptrain::pipeline {

// One pass of a stage, with what the rank's list has next for that stage.
struct Pass {
  schedule::ActionKind kind = schedule::ActionKind::forward;  // F, B, I or W
  std::optional<schedule::ActionKind> next;  // the next F, B or I before a RESHARD or the end of the list
  bool reduce_follows = false;               // REDUCE_GRAD comes before the stage's next pass
};

// parallel/shard implements it for ranks that share a stage. By default nothing is done: the weights of a
// stage without peers are always there, and its gradients are whole. Only settle, finish and discard may
// wait for other ranks.
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

}  // namespace pptrain::pipeline

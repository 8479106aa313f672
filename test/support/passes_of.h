// Costs of a stage by the times of its passes.
#pragma once

#include "parallel/schedule/cost/simulate.h"

namespace pptrain::schedule {

// S and T take 1.
inline StageCost passes_of(double forward, double input, double weight, double backward) {
  StageCost cost;
  cost.time.forward = forward;
  cost.time.backward_input = input;
  cost.time.backward_weight = weight;
  cost.time.backward = backward;
  return cost;
}

// B takes as long as I and W.
inline StageCost passes_of(double forward, double input, double weight) {
  return passes_of(forward, input, weight, input + weight);
}

}  // namespace pptrain::schedule

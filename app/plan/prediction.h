// What a step of a plan will take, in time and in bytes, before it runs.
#pragma once

#include <cstdint>
#include <vector>

#include "app/plan/plan.h"
#include "parallel/schedule/cost/simulate.h"

namespace pptrain::app {

struct RankBytes {
  int64_t weights = 0;      // fp32 masters and compute copies
  int64_t gradients = 0;    // fp32
  int64_t optimizer = 0;    // moments, and what post-validation keeps
  int64_t activations = 0;  // at the worst moment: records, operands of W, and the workspace of the action
  int64_t buffers = 0;      // messages on their way in and out
  int64_t total() const { return weights + gradients + optimizer + activations + buffers; }
};

struct Prediction {
  schedule::Costs costs;          // s
  schedule::Simulation pipeline;  // of the lowered schedule
  double step_time = 0;           // s
  double tokens_per_s = 0;        // of all replicas
  // [rank] s that the rank waits after the pipeline's end until the step's
  std::vector<double> barrier;
  std::vector<double> optimizer_time;  // [rank] s
  std::vector<RankBytes> bytes;        // [rank]

  double bubble() const;       // idle part of the step, all ranks together, barrier included
  int64_t peak_bytes() const;  // of the fullest rank
};

Prediction predict(const Plan& plan, const CostSource& source);

}  // namespace pptrain::app

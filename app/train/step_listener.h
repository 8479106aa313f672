// Events around the steps of a run, for metrics, evaluation, samples, saves and stops.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/metrics/step_record.h"

namespace pptrain::app {

// One optimizer step. Loss, norm and token counts are over all ranks and equal on each of them.
struct StepResult {
  int64_t step = 0;  // 1 is the first
  double loss = 0;   // mean over valid tokens, in nats
  double norm = 0;   // of the gradient of the mean loss
  double lr = 0;
  bool applied = false;      // otherwise the step was skipped
  double grad_scale = 0;     // the optimizer's factor on the gradient of the loss sum
  int64_t valid_tokens = 0;  // labels that count in the loss
  int64_t tokens = 0;        // of the microbatches
  int64_t padding = 0;       // of these tokens
  double seconds = 0;        // on this rank
  double data_wait_s = 0;    // part of it spent waiting for data
  std::optional<metrics::Bubble> bubble = std::nullopt;  // rank 0, if it was measured
  metrics::ExpertLoads expert_loads = {};                // of the sparse layers
  std::vector<double> microbatch_losses = {};            // as loss; with metrics.microbatch_losses
};

// The ranks call each method of all listeners in the same order.
class StepListener {
 public:
  virtual ~StepListener() = default;
  // The weights are about to change; every rank's part of the gradient norm is known.
  virtual void begin_update(int64_t /*step*/) {}
  // The result of a step is known. With post-validation this may be within the next step.
  virtual void settled(const StepResult& /*result*/) {}
  // Does after_step() act on this step? Then its result must be known before the next step begins.
  virtual bool is_due(int64_t /*step*/) const { return false; }
  // Acts between two steps, if it is due. Collective.
  virtual void after_step() {}
};

}  // namespace pptrain::app

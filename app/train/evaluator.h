// Validation loss through the same pipeline, forward only.
#pragma once

#include "app/train/rank_model.h"
#include "app/train/run_context.h"
#include "core/data/data_loader.h"
#include "parallel/pipeline/executor.h"

namespace pptrain::app {

class Evaluator {
 public:
  // The stages lie as they do in training. Throws UsageError where the job has no validation data. Both must
  // outlive the evaluator.
  Evaluator(RunContext& context, RankModel& model);

  // Mean loss in nats over the valid tokens of eval.batches batches, the same on every rank. Collective.
  pipeline::LossSum run();

 private:
  RankModel& model_;
  data::ValidationLoader loader_;
  pipeline::Executor executor_;
};

}  // namespace pptrain::app

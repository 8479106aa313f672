// distributed.pp_split = "cost".
#pragma once

#include "app/forecast/cost_model.h"
#include "app/forecast/costs.h"
#include "parallel/pipeline/split_layers.h"
#include "parallel/schedule/schedule.h"

namespace pptrain::app {

// Layers of each stage such that the predicted step is short: from the even split, moves one layer at a time
// while that helps. Embedding and head weigh what they cost. `compute`: the schedule's compute actions alone.
// Throws UsageError where the model has fewer layers than the schedule stages.
pipeline::LayerAssignment cost_split(const CostModel& costs, const models::ModelConfig& model,
                                     const schedule::Schedule& compute);

}  // namespace pptrain::app

// What is chosen for each stage of a plan: its layers, and how much it and its microbatches recompute where
// memory binds.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "app/forecast/cost_model.h"
#include "app/forecast/costs.h"
#include "app/forecast/prediction.h"
#include "app/plan/plan.h"
#include "parallel/pipeline/split_layers.h"
#include "parallel/schedule/schedule.h"

namespace pptrain::app {

// distributed.pp_split = "cost": layers of each stage such that the predicted step is short: from the even
// split, moves one layer at a time while that helps. Embedding and head weigh what they cost. `compute`: the
// schedule's compute actions alone. Throws UsageError where the model has fewer layers than the schedule
// stages.
pipeline::LayerAssignment cost_split(const CostModel& costs, const models::ModelConfig& model,
                                     const schedule::Schedule& compute);

// The schedule with the head over all ranks (schedule::spread_head), where the job wants it and it is not so
// yet.
schedule::Schedule with_head(const CostModel& costs, schedule::Schedule compute,
                             const pipeline::LayerAssignment& layers);

// Raises what stages recompute, on the ranks that hold more than `budget` bytes alone: of such a rank's
// stages the one that recomputes least, and of those the one whose next step leaves the rank with the fewest
// bytes; until every rank fits, or nothing is left to recompute. So the ranks that hold few microbatches (the
// last ones of 1f1b) go on keeping what they have room for. `plan`: recomputes nothing or a little;
// `predicted`: its prediction. The plan that recomputes more, and its prediction.
std::pair<Plan, Prediction> choose_recompute(Plan plan, Prediction predicted, const CostSource& source,
                                             double budget, FootprintCache& dry_runs);

// Lowers what single microbatches recompute (schedule::recompute_levels), to `least` or more, as long as
// every rank stays within `budget` bytes. `plan`: one level for each stage; `step_time`: its predicted
// seconds. Returns nothing where the step gets no shorter, else the plan with lower levels and its
// prediction.
std::optional<std::pair<Plan, Prediction>> lower_microbatches(Plan plan, double step_time,
                                                              models::Recompute least,
                                                              const CostSource& source, double budget,
                                                              FootprintCache& dry_runs);

// What the microbatches of a step, which have so many tokens, recompute on the stages of one pipeline rank:
// [stage of the rank, ascending][microbatch].
using StepRecompute =
    std::function<std::vector<std::vector<models::Recompute>>(std::span<const int64_t> tokens)>;

// Chooses as lower_microbatches does, within plan.recompute_memory bytes. Takes milliseconds a step.
StepRecompute step_recompute(Plan plan, int rank);

}  // namespace pptrain::app

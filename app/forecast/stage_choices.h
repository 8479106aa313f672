// What is chosen for each stage of a plan: its layers, and, if memory is short, how much it and its
// microbatches recompute.
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

// distributed.pp_split = "cost": layers of each stage that make the predicted step short. Starts from the
// even split and moves one layer at a time while that helps. Embedding and head weigh what they cost.
// `compute`: the schedule's compute actions only. Throws UsageError if the model has fewer layers than the
// schedule has stages.
pipeline::LayerAssignment cost_split(const CostModel& costs, const models::ModelConfig& model,
                                     const schedule::Schedule& compute);

// The splits that differ from this one by a single layer, which moves from a stage of `from`, if that has
// more than one, to a stage of `to`.
std::vector<pipeline::LayerAssignment> layer_moves(const pipeline::LayerAssignment& layers,
                                                   std::span<const int> from, std::span<const int> to);
std::vector<int> all_stages(const schedule::Schedule& schedule);

// On each rank above `budget` bytes, raises the stage with the lowest level by one; among equals, the one
// that leaves the rank with the fewest bytes. Repeats until every rank fits, or nothing is left to recompute.
// So the ranks that hold few microbatches (the last ones of 1f1b) keep what they have room for. `plan`:
// recomputes nothing or a little; `predicted`: its prediction. Returns the plan that recomputes more, and its
// prediction.
std::pair<Plan, Prediction> choose_recompute(Plan plan, Prediction predicted, const CostSource& source,
                                             double budget, FootprintCache& dry_runs);

// Lowers what single microbatches recompute (schedule::recompute_levels), to `least` or more, as long as
// every rank stays within `budget` bytes. `plan`: one level for each stage; `step_time`: its predicted
// seconds. Returns nothing if the step gets no shorter, else the plan with lower levels and its prediction.
std::optional<std::pair<Plan, Prediction>> lower_microbatches(Plan plan, double step_time,
                                                              config::Recompute least,
                                                              const CostSource& source, double budget,
                                                              FootprintCache& dry_runs);

// Recompute of a step's microbatches, which have so many tokens, on the stages of one pipeline rank: [stage
// of the rank, ascending][microbatch].
using StepRecompute =
    std::function<std::vector<std::vector<config::Recompute>>(std::span<const int64_t> tokens)>;

// Chooses as lower_microbatches does, within plan.recompute_memory bytes. Takes milliseconds a step.
StepRecompute step_recompute(Plan plan, int rank);

}  // namespace pptrain::app

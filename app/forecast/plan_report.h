// A plan and its prediction, for people and for programs.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "app/forecast/costs.h"
#include "app/forecast/memory_fit.h"
#include "app/forecast/prediction.h"
#include "app/plan/plan.h"
#include "parallel/schedule/render/render.h"

namespace pptrain::app {

// Price and power of a rank while it trains; 0: not given.
struct JobRates {
  double price = 0;  // of an hour
  double watts = 0;
};

// What a report says in addition to a prediction.
struct PlanContext {
  JobRates rates{};
  std::optional<MemoryFit> fit{};  // nothing: no room is known
  std::vector<Remedy> remedies{};  // if it does not fit
  bool all_ranks = false;          // else tables and grids of many ranks are cut
};

// Says whether the plan's ranks have room, and what would help: on the GPU of `source`, of which each rank
// may use `room` bytes (0: no bound), or on this host.
PlanContext context_of(const Plan& plan, const Prediction& prediction, const CostSource& source, double room,
                       std::string place);

// First the answer: the step, whether it fits, how sure that is. Then the step as a grid, and how each rank
// spends time and memory. options: of the grid; no line of text is wider either.
std::string render_plan(const Plan& plan, const Prediction& prediction, const CostModel& costs,
                        const CostSource& source, schedule::TextOptions options,
                        const PlanContext& context = {});

// Seconds, bytes and layers. Each rank's busy, fill, steady, drain, barrier and optimizer_time add up to the
// step.
nlohmann::ordered_json plan_json(const Plan& plan, const Prediction& prediction, const CostModel& costs,
                                 const CostSource& source, const PlanContext& context = {});

// A plan with its prediction, and the job's name.
struct NamedPlan {
  std::string name;
  Plan plan;
  Prediction prediction;
  CostSource source;
};

// Two plans side by side, and whether their times differ by more than forecasts are sure of.
std::string render_beside(const NamedPlan& one, const NamedPlan& other);

// Bytes of one checkpoint's tensors, all stages together: fp32 weights and the optimizer's state.
int64_t checkpoint_bytes(const Plan& plan);
// Copies of it that the host's memory has room for: the newest, the one before it, which goes when the newest
// is whole on all ranks, and one that is being written.
inline constexpr int memory_copies = 3;
// Bytes that these take; 0 without checkpoint.memory_seconds.
int64_t memory_copy_bytes(const Plan& plan);

}  // namespace pptrain::app

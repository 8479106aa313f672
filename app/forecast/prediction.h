// What a step of a plan will take, in time and in bytes, before it runs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "app/forecast/cost_model.h"
#include "app/forecast/costs.h"
#include "app/plan/plan.h"
#include "parallel/schedule/cost/simulate.h"

namespace pptrain::app {

struct RankBytes {
  int64_t weights = 0;      // this rank's shard: fp32 masters and compute copies
  int64_t gathered = 0;     // other ranks' shards; at the peak, as all below except the optimizer's
  int64_t gradients = 0;    // fp32
  int64_t optimizer = 0;    // moments, and what post-validation keeps
  int64_t activations = 0;  // saved activations, operands of W, and the action's workspace
  int64_t buffers = 0;      // messages on their way in and out, and scratch of sums
  int64_t total() const { return weights + gathered + gradients + optimizer + activations + buffers; }
  // The kinds with their names, in this order.
  std::vector<std::pair<std::string, int64_t>> kinds() const;
};

// What ranks exchange, seconds of a step, the mean of the pipeline's ranks.
struct ExchangeTime {
  // A wire's name: exchanges in passes, along the axis. weights, gradients: gathered and summed over data and
  // context ranks. pp: between stages.
  std::string what;
  double total = 0;
  double exposed = 0;  // ranks wait for this part
};

inline constexpr int64_t forecast_steps = 8;

struct Prediction {
  schedule::Costs costs;          // s
  schedule::Simulation pipeline;  // of the lowered schedule
  double step_time = 0;           // s
  double tokens_per_s = 0;        // of all data ranks
  // [rank] s from the pipeline's end on this rank until the end of the step
  std::vector<double> barrier;
  std::vector<double> optimizer_time;  // [rank] s
  std::vector<RankBytes> bytes;        // [rank]
  // What a process takes in addition to its ranks' bytes, for the program and its libraries; 0 if that is not
  // known.
  int64_t program_bytes = 0;
  // With data.lengths = "exact", if the data are at hand: mean s of the first `forecast_steps` steps, by
  // data.balance (microbatches, schedule). All else is for full microbatches.
  std::optional<std::pair<double, double>> lengths{};

  double bubble() const;       // idle part of the step, all ranks together, barrier included
  int64_t peak_bytes() const;  // of the fullest rank
  const RankBytes& fullest() const;
};

// [rank] for a step with this schedule.
std::vector<OptimizerCost> optimizer_costs(const CostModel& costs, const pipeline::LayerAssignment& layers,
                                           const schedule::Schedule& schedule);
std::vector<RankBytes> rank_bytes(const CostModel& costs, const pipeline::LayerAssignment& layers,
                                  const schedule::Schedule& schedule);

Prediction predict(const Plan& plan, const CostSource& source);
// The same with the plan's cost model at hand.
Prediction predict(const Plan& plan, const CostModel& costs);

// Exchanges that take any time.
std::vector<ExchangeTime> exchange_times(const Plan& plan, const CostModel& costs,
                                         const Prediction& prediction);

}  // namespace pptrain::app

#include "app/forecast/stage_choices.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "app/forecast/costs.h"

namespace pptrain::app {

namespace {

// A smaller gain does not count.
constexpr double worth = 1e-3;

// How often each rank computes F, B, I or W of each stage.
class Work {
 public:
  explicit Work(const schedule::Schedule& compute) : ranks_(compute.actions.size()) {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      for (const schedule::Action& action : compute.actions[rank]) {
        const bool pair = action.kind == schedule::ActionKind::overlapped_pair;
        schedule::for_each_part(action, [&](const schedule::Action& part) {
          if (schedule::is_compute(part.kind)) ++ranks_[rank][{part.stage, part.kind, pair}];
        });
      }
    }
  }

  // The busiest rank's computing time without pauses: no step is shorter.
  double of_busiest(const schedule::Costs& costs) const {
    double most = 0;
    for (const auto& passes : ranks_) {
      double seconds = 0;
      for (const auto& [pass, count] : passes) {
        const auto& [stage, kind, pair] = pass;
        const schedule::StageCost& cost = costs.stages.at(stage);
        const double hidden = pair ? cost.wire.of(kind) : 0;  // at most
        seconds += (cost.time.of(kind) - hidden) * static_cast<double>(count);
      }
      most = std::max(most, seconds);
    }
    return most;
  }

 private:
  using Pass = std::tuple<int, schedule::ActionKind, bool>;  // stage, kind, half of an overlapped pair
  std::vector<std::map<Pass, int64_t>> ranks_;
};

}  // namespace

std::vector<int> all_stages(const schedule::Schedule& schedule) {
  std::vector<int> stages(static_cast<size_t>(schedule.stages()));
  std::iota(stages.begin(), stages.end(), 0);
  return stages;
}

std::vector<pipeline::LayerAssignment> layer_moves(const pipeline::LayerAssignment& layers,
                                                   std::span<const int> from, std::span<const int> to) {
  const std::vector<int64_t> counts = pipeline::layers_per_stage(layers);
  std::vector<pipeline::LayerAssignment> moves;
  for (const int donor : from) {
    for (const int receiver : to) {
      if (receiver == donor || counts[donor] == 1) continue;
      std::vector<int64_t> moved = counts;
      --moved[donor];
      ++moved[receiver];
      moves.push_back(pipeline::from_counts(moved));
    }
  }
  return moves;
}

// Takes the best single move as long as one is worth it. A move that leaves some rank as busy as the best
// step is long needs no simulation.
pipeline::LayerAssignment cost_split(const CostModel& costs, const models::ModelConfig& model,
                                     const schedule::Schedule& compute) {
  constexpr int most_stages = 8;  // in a larger pipeline only the busiest rank's stages give layers
  constexpr double rounding = 1e-9;
  const Work work(compute);
  const auto costs_of = [&](const pipeline::LayerAssignment& layers) {
    return simulation_costs(costs, layers, compute);
  };
  pipeline::LayerAssignment best =
      pipeline::compute_layer_assignment(static_cast<int>(model.layers), compute.stages());
  schedule::Simulation simulated = schedule::simulate(compute, costs_of(best));
  for (bool changed = true; changed;) {
    changed = false;
    std::vector<int> from = all_stages(compute);
    if (compute.stages() > most_stages) {
      const auto busiest = std::ranges::max_element(simulated.ranks, {}, &schedule::RankTime::busy);
      from = compute.stages_of(static_cast<int>(busiest - simulated.ranks.begin()));
    }
    double limit = simulated.step_time * (1 - worth);
    for (pipeline::LayerAssignment& move : layer_moves(best, from, all_stages(compute))) {
      const schedule::Costs moved = costs_of(move);
      if (work.of_busiest(moved) > limit * (1 + rounding)) continue;
      schedule::Simulation shorter = schedule::simulate(compute, moved);
      if (shorter.step_time >= limit) continue;
      limit = shorter.step_time;
      simulated = std::move(shorter);
      best = std::move(move);
      changed = true;
    }
  }
  return best;
}

}  // namespace pptrain::app

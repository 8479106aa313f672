#include "app/forecast/stage_choices.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
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

// Hill climbing over single moves of a layer from one stage to another. In a large pipeline only moves from
// the busiest rank are tried. A move that leaves some rank as busy as the best step is long needs no
// simulation.
class SplitClimber {
 public:
  SplitClimber(const CostModel& costs, int layers, const schedule::Schedule& compute)
      : costs_(costs),
        compute_(compute),
        work_(compute),
        counts_(pipeline::layers_per_stage(pipeline::compute_layer_assignment(layers, compute.stages()))),
        best_(simulate().step_time) {}

  pipeline::LayerAssignment climb() {
    while (step()) {
    }
    return pipeline::from_counts(counts_);
  }

 private:
  schedule::Costs costs() const { return simulation_costs(costs_, pipeline::from_counts(counts_), compute_); }

  schedule::Simulation simulate() const { return schedule::simulate(compute_, costs()); }

  // Nothing if it cannot be shorter than `limit`.
  std::optional<double> step_time(double limit) const {
    constexpr double rounding = 1e-9;
    const schedule::Costs now = costs();
    if (work_.of_busiest(now) > limit * (1 + rounding)) return std::nullopt;
    return schedule::simulate(compute_, now).step_time;
  }

  std::vector<int> donors() const {
    if (compute_.stages() <= 8) {
      std::vector<int> all(static_cast<size_t>(compute_.stages()));
      std::iota(all.begin(), all.end(), 0);
      return all;
    }
    const schedule::Simulation now = simulate();
    const auto busiest = std::ranges::max_element(now.ranks, {}, &schedule::RankTime::busy);
    return compute_.stages_of(static_cast<int>(busiest - now.ranks.begin()));
  }

  // The best single move; false if none is worth it.
  bool step() {
    double best = best_ * (1 - worth);
    std::optional<std::pair<int, int>> move;
    for (const int from : donors()) {
      if (counts_[from] == 1) continue;
      for (int to = 0; to < compute_.stages(); ++to) {
        if (to == from) continue;
        shift(from, to);
        if (const auto t = step_time(best); t && *t < best) {
          best = *t;
          move = {from, to};
        }
        shift(to, from);
      }
    }
    if (!move) return false;
    shift(move->first, move->second);
    best_ = best;
    return true;
  }

  void shift(int from, int to) {
    --counts_[from];
    ++counts_[to];
  }

  const CostModel& costs_;
  const schedule::Schedule& compute_;
  Work work_;
  std::vector<int64_t> counts_;
  double best_;
};

}  // namespace

schedule::Schedule with_head(const CostModel& costs, schedule::Schedule compute,
                             const pipeline::LayerAssignment& layers) {
  if (head_parts(costs.base()) == 1 || compute.spread_head) return compute;
  return schedule::spread_head(compute, simulation_costs(costs, layers, compute));
}

pipeline::LayerAssignment cost_split(const CostModel& costs, const models::ModelConfig& model,
                                     const schedule::Schedule& compute) {
  return SplitClimber(costs, static_cast<int>(model.layers), compute).climb();
}

}  // namespace pptrain::app

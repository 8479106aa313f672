#include "app/plan/split_by_cost.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "app/plan/costs.h"

namespace pptrain::app {

namespace {

// Faster by less than this is not faster.
constexpr double worth = 1e-3;

// Hill climbing over single moves of a layer from one stage to another. Of a large pipeline only moves from
// the busiest rank are tried.
class SplitClimber {
 public:
  SplitClimber(const models::CostModel& costs, int layers, const schedule::Schedule& compute)
      : costs_(costs),
        compute_(compute),
        counts_(pipeline::layers_per_stage(pipeline::compute_layer_assignment(layers, compute.stages()))),
        best_(simulate().step_time) {}

  pipeline::LayerAssignment climb() {
    while (step()) {
    }
    return pipeline::from_counts(counts_);
  }

 private:
  schedule::Simulation simulate() const {
    return schedule::simulate(compute_, simulation_costs(costs_, pipeline::from_counts(counts_), compute_));
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
        if (const double t = simulate().step_time; t < best) {
          best = t;
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

  const models::CostModel& costs_;
  const schedule::Schedule& compute_;
  std::vector<int64_t> counts_;
  double best_;
};

}  // namespace

pipeline::LayerAssignment cost_split(const models::CostModel& costs, const models::ModelConfig& model,
                                     const schedule::Schedule& compute) {
  return SplitClimber(costs, static_cast<int>(model.layers), compute).climb();
}

}  // namespace pptrain::app

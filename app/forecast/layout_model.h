// A layout on one mesh, while many are compared: lower bounds of its costs, and estimates of its schedules.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "app/forecast/cost_model.h"
#include "app/forecast/schedule_shapes.h"
#include "app/forecast/search.h"
#include "parallel/schedule/cost/memory.h"

namespace pptrain::app {

// Costs of the whole model as one stage, each found once, for the bounds of a mesh's layouts.
class WholeModelCosts {
 public:
  explicit WholeModelCosts(const models::ModelConfig& model) : whole_(models::whole_model(model)) {}

  const StagePasses& passes(const Layout& layout, const CostModel& costs);  // of a microbatch
  const HeldBytes& held(const Layout& layout, const CostModel& costs);
  const StageExchange& exchange(const CostModel& costs);
  const OptimizerCost& optimizer(const CostModel& costs);
  const StageFootprint& footprint(const CostModel& costs) const { return costs.footprint(whole_); }

 private:
  models::StageSlice whole_;
  std::map<std::pair<int64_t, std::string>, StagePasses> passes_;  // by micro_batch_size, recompute
  std::map<std::pair<bool, bool>, HeldBytes> held_;                // by reshard, every_microbatch
  std::optional<StageExchange> exchange_;
  std::optional<OptimizerCost> optimizer_;
};

class LayoutModel {
 public:
  static constexpr int most_stages_per_rank = 4;  // that the search tries

  // `layout`: one word of recompute; its schedule and layers are ignored. `dry_runs` must outlive this.
  LayoutModel(const Layout& layout, const PlanBase& base, const CostSource& source, FootprintCache& dry_runs,
              std::shared_ptr<const MeshLinks> links);

  // Lower bounds for every schedule and split: seconds of a step, and bytes of the fullest rank. `whole`
  // serves all layouts of the mesh.
  double least_time(WholeModelCosts& whole) const;
  RankBytes least_bytes(WholeModelCosts& whole) const;

  // The layout with this schedule, without layers. Nothing if the schedule does not exist or repeats another
  // one, or if the model has too few layers.
  std::optional<Candidate> estimate(ScheduleShapes& shapes, const std::string& schedule, int stages_per_rank);
  TimeSplit split(ScheduleShapes& shapes, const Candidate& estimate);

  const pipeline::LayerAssignment& layers(int stages);  // balanced by cost, embedding and head included
  int64_t actions() const { return actions_; }          // simulated so far

 private:
  struct Shapes;

  std::optional<Shapes> shapes_of(ScheduleShapes& shapes, const std::string& schedule,
                                  int64_t stages_per_rank) const;
  schedule::Costs costs_of(const schedule::Schedule& schedule) {
    return simulation_costs(costs_, layers(schedule.stages()), schedule);
  }
  double pipeline_time(const Shapes& shapes, const schedule::Costs& costs);
  std::vector<RankBytes> bytes_of(const schedule::Schedule& schedule);
  double slowest_optimizer(const schedule::Schedule& schedule);

  Layout layout_;
  CostModel costs_;
  std::map<int, pipeline::LayerAssignment> layers_;  // by stages
  int64_t actions_ = 0;
};

}  // namespace pptrain::app

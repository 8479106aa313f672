#include "app/forecast/layout_model.h"

#include <algorithm>
#include <utility>

#include "app/forecast/costs.h"
#include "core/base/error.h"

namespace pptrain::app {

namespace {

template <typename Each>
RankBytes combined(const RankBytes& a, const RankBytes& b, const Each& each) {
  const auto of = [&](int64_t x, int64_t y) {
    return static_cast<int64_t>(each(static_cast<double>(x), static_cast<double>(y)));
  };
  return {.weights = of(a.weights, b.weights),
          .gathered = of(a.gathered, b.gathered),
          .gradients = of(a.gradients, b.gradients),
          .optimizer = of(a.optimizer, b.optimizer),
          .activations = of(a.activations, b.activations),
          .buffers = of(a.buffers, b.buffers)};
}

}  // namespace

struct LayoutModel::Shapes {  // of a short step, and of a longer one
  Stretch stretch;
  std::shared_ptr<const schedule::Schedule> few, more;
};

const StagePasses& WholeModelCosts::passes(const Layout& layout, const CostModel& costs) {
  const std::pair key(layout.micro_batch_size, layout.recompute.words.front());
  if (const auto known = passes_.find(key); known != passes_.end()) return known->second;
  return passes_.emplace(key, costs.passes(whole_)).first->second;
}

const HeldBytes& WholeModelCosts::held(const Layout& layout, const CostModel& costs) {
  const std::pair key(layout.reshard, layout.every_microbatch);
  if (const auto known = held_.find(key); known != held_.end()) return known->second;
  return held_.emplace(key, held_bytes(footprint(costs), costs.base().mesh, costs.shard())).first->second;
}

const StageExchange& WholeModelCosts::exchange(const CostModel& costs) {
  if (!exchange_) exchange_ = costs.exchange(whole_);
  return *exchange_;
}

const OptimizerCost& WholeModelCosts::optimizer(const CostModel& costs) {
  if (!optimizer_) optimizer_ = costs.optimizer(whole_);
  return *optimizer_;
}

LayoutModel::LayoutModel(const Layout& layout, const PlanBase& base, const CostSource& source,
                         FootprintCache& dry_runs, std::shared_ptr<const MeshLinks> links)
    : layout_(layout), costs_(dry_runs, on_layout(base, layout), source, std::move(links)) {}

// The mean rank's passes, one after the other. Before them the last rank waits for the first microbatch;
// after them come the optimizer and the norm. Streamed weights bound each pass, except for one group that is
// already there. Gradients reduced after each microbatch go through one channel.
double LayoutModel::least_time(WholeModelCosts& whole) const {
  const StagePasses& passes = whole.passes(layout_, costs_);
  const StageExchange& exchange = whole.exchange(costs_);
  const double ranks = layout_.mesh.pp;
  const auto microbatches = static_cast<double>(layout_.microbatches());
  double forward = passes.forward.total();
  double backward =
      std::min(passes.backward.total(), passes.backward_input.total() + passes.backward_weight.total());
  if (layout_.reshard) {
    const double groups = static_cast<double>(whole.footprint(costs_).groups.size()) / ranks;
    const double gather = exchange.gather * std::max(0.0, 1 - 1 / groups);
    forward = std::max(forward, gather);
    backward = std::max(backward, gather);
  }
  double pipeline =
      microbatches * (forward + backward) / ranks + (ranks - 1) / ranks * forward / most_stages_per_rank;
  if (layout_.every_microbatch) pipeline = std::max(pipeline, microbatches * exchange.reduce() / ranks);
  return pipeline + whole.optimizer(costs_).seconds / ranks + costs_.norm_exchange() + costs_.overhead();
}

// Bytes of the mean rank: between steps, and for one stage's microbatch.
RankBytes LayoutModel::least_bytes(WholeModelCosts& whole) const {
  const HeldBytes& held = whole.held(layout_, costs_);
  const int64_t ranks = layout_.mesh.pp;
  return {.weights = held.weights / ranks,
          .gathered = layout_.reshard ? held.gathered / 2 : held.gathered / ranks / most_stages_per_rank,
          .gradients = held.gradients / ranks,
          .optimizer = whole.optimizer(costs_).held / ranks,
          .activations = whole.footprint(costs_).activation / ranks / (ranks == 1 ? 1 : most_stages_per_rank),
          .buffers = 0};
}

const pipeline::LayerAssignment& LayoutModel::layers(int stages) {
  if (const auto known = layers_.find(stages); known != layers_.end()) return known->second;
  const auto seconds = [&](bool embedding, bool head) {
    const StagePasses& one = costs_.of({.end_layer = 1, .embedding = embedding, .head = head}).passes;
    return one.forward.total() + one.backward.total();
  };
  const double layer = seconds(false, false);
  const int count = static_cast<int>(costs_.base().model.layers);
  pipeline::LayerAssignment result;
  try {
    result = pipeline::compute_layer_assignment(count, stages, seconds(true, false) / layer - 1,
                                                seconds(false, true) / layer - 1);
  } catch (const UsageError&) {  // the head outweighs a whole stage
    result = pipeline::compute_layer_assignment(count, stages);
  }
  return layers_.emplace(stages, std::move(result)).first->second;
}

std::optional<LayoutModel::Shapes> LayoutModel::shapes_of(ScheduleShapes& shapes, const std::string& schedule,
                                                          int64_t stages_per_rank) const {
  schedule::ScheduleSpec spec = schedule_spec(costs_.base().job);
  spec.name = schedule;
  spec.stages_per_rank = static_cast<int>(stages_per_rank);
  const schedule::ShardOptions& shard = costs_.shard();
  Shapes result{.stretch = Stretch(layout_.mesh.pp, static_cast<int>(layout_.grad_accum_steps)),
                .few = nullptr,
                .more = nullptr};
  spec.microbatches = result.stretch.more;
  result.more = shapes.of(spec, shard);
  // Without a pipeline all schedules are the same.
  if (layout_.mesh.pp > 1 && shapes.repeats_another(spec, shard)) return std::nullopt;
  spec.microbatches = result.stretch.few;
  result.few = result.stretch.is_whole() ? result.more : shapes.of(spec, shard);
  if (!result.few || !result.more) return std::nullopt;
  return result;
}

double LayoutModel::pipeline_time(const Shapes& shapes, const schedule::Costs& costs) {
  const auto simulate = [&](const schedule::Schedule& schedule) {
    for (const auto& list : schedule.actions) actions_ += std::ssize(list);
    return costs_.on_cores(schedule, schedule::simulate(schedule, costs)).step_time;
  };
  const double more = simulate(*shapes.more);
  return shapes.stretch.is_whole() ? more : shapes.stretch.at_all(simulate(*shapes.few), more);
}

// Without sends and receives: as one microbatch arrives, another leaves, both ways.
std::vector<RankBytes> LayoutModel::bytes_of(const schedule::Schedule& schedule) {
  const pipeline::LayerAssignment& split = layers(schedule.stages());
  std::vector<RankBytes> ranks = rank_bytes(costs_, split, schedule);
  if (schedule.ranks == 1) return ranks;
  for (RankBytes& rank : ranks) rank.buffers += 4 * costs_.of(split, 0).bytes.message;
  return ranks;
}

double LayoutModel::slowest_optimizer(const schedule::Schedule& schedule) {
  const auto ranks = optimizer_costs(costs_, layers(schedule.stages()), schedule);
  return costs_.load() * std::ranges::max(ranks, {}, &OptimizerCost::seconds).seconds;
}

std::optional<Candidate> LayoutModel::estimate(ScheduleShapes& shapes, const std::string& schedule,
                                               int stages_per_rank) {
  if (layout_.mesh.pp * stages_per_rank > costs_.base().model.layers) return std::nullopt;
  const auto known = shapes_of(shapes, schedule, stages_per_rank);
  if (!known) return std::nullopt;
  Candidate result{.layout = layout_, .bytes = {}};
  result.layout.schedule = schedule;
  result.layout.stages_per_rank = stages_per_rank;
  result.step_time = pipeline_time(*known, costs_of(*known->more)) + slowest_optimizer(*known->more) +
                     costs_.norm_exchange() + costs_.overhead();
  const std::vector<RankBytes> more = bytes_of(*known->more);
  const std::vector<RankBytes> few = known->stretch.is_whole() ? more : bytes_of(*known->few);
  for (size_t rank = 0; rank < more.size(); ++rank) {
    const RankBytes all =
        combined(few[rank], more[rank], [&](double f, double m) { return known->stretch.at_all(f, m); });
    if (all.total() > result.bytes.total()) result.bytes = all;
  }
  return result;
}

TimeSplit LayoutModel::split(ScheduleShapes& shapes, const Candidate& estimate) {
  const Shapes known = *shapes_of(shapes, estimate.layout.schedule, estimate.layout.stages_per_rank);
  const schedule::Schedule& schedule = *known.more;
  const pipeline::LayerAssignment& split = layers(schedule.stages());
  PassTime passes;
  StageExchange within;
  schedule::for_each_part(schedule, [&](const schedule::Action& part) {
    const StageForecast& own = costs_.of(split, part.stage);
    if (schedule::is_compute(part.kind)) passes += own.passes.of(part.kind);
    within.gather += own.within.gather_of(part.kind);
    if (schedule::is_weight_gradient(part.kind)) within.sum += own.within.reduce();
  });
  const double scale = static_cast<double>(known.stretch.all) / known.stretch.more / schedule.ranks;
  const schedule::Costs costs = costs_of(schedule);
  const double pipeline = pipeline_time(known, costs);
  const auto longer_by = [&](double schedule::ExchangeCost::*part) {
    schedule::Costs without = costs;
    for (schedule::ExchangeCost& cost : without.exchange) cost.*part = 0;
    return std::max(0.0, pipeline - pipeline_time(known, without));
  };
  TimeSplit time{.compute = passes.compute * scale,
                 .waiting = passes.exposed,
                 .weights = within.gather * scale + longer_by(&schedule::ExchangeCost::gather),
                 .gradients = within.sum * scale + longer_by(&schedule::ExchangeCost::reduce),
                 .bubble = 0,
                 .optimizer = slowest_optimizer(schedule),
                 .others = costs_.norm_exchange() + costs_.overhead()};
  for (double& seconds : time.waiting) seconds *= scale;
  for (const auto& [name, seconds] : time.parts()) time.bubble -= seconds;
  time.bubble += estimate.step_time;
  return time;
}

}  // namespace pptrain::app

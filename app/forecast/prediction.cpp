#include "app/forecast/prediction.h"

#include <algorithm>
#include <utility>

#include "parallel/schedule/cost/memory.h"

namespace pptrain::app {

namespace {

int64_t tokens_of_step(const Plan& plan) {
  const config::TrainSection& train = plan.job.train;
  return train.micro_batch_size * train.seq_len * train.grad_accum_steps * plan.mesh.size(mesh::Group::batch);
}

// The part of an overlapped pair's exchanges that the other half does not hide.
double left_to_wait(const schedule::StageCost& forward, const schedule::StageCost& backward,
                    schedule::ActionKind kind) {
  const double wires = forward.wire.forward + backward.wire.of(kind);
  const double hidden =
      forward.time.forward + backward.time.of(kind) - schedule::pair_duration(forward, backward, kind);
  return wires > 0 ? 1 - hidden / wires : 1;
}

// What the passes of a step exchange: [wire].
std::vector<ExchangeTime> times_on_wires(const Plan& plan, const CostModel& costs, const Prediction& p) {
  std::vector<ExchangeTime> times;
  for (const char* wire : kernels::wire_names) times.push_back({wire});
  std::vector<std::vector<const StageForecast*>> stages;  // [stage][microbatch], repeating
  for (int stage = 0; stage < plan.compute.stages(); ++stage)
    stages.push_back(costs.of_microbatches(plan.layers, stage));
  const double ranks = plan.compute.ranks;
  for (const auto& list : plan.compute.actions) {
    for (const schedule::Action& action : list) {
      const double waits =
          action.kind == schedule::ActionKind::overlapped_pair
              ? left_to_wait(schedule::cost_of(p.costs, plan.compute, schedule::forward_of(action)),
                             schedule::cost_of(p.costs, plan.compute, schedule::backward_of(action)),
                             action.backward_kind)
              : 1;
      schedule::for_each_part(action, [&](const schedule::Action& part) {
        const auto& own = stages[static_cast<size_t>(part.stage)];
        const PassTime& pass = own[static_cast<size_t>(part.microbatch) % own.size()]->passes.of(part.kind);
        for (size_t wire = 0; wire < times.size(); ++wire) {
          times[wire].exposed += waits * pass.exposed[wire] / ranks;
          times[wire].total += (pass.exposed[wire] + pass.hidden[wire]) / ranks;
        }
      });
    }
  }
  return times;
}

// By how much an exchange makes the pipeline longer.
double exposed(const Plan& plan, const Prediction& p, double schedule::ExchangeCost::*part) {
  const auto takes_none = [&](const schedule::ExchangeCost& cost) { return cost.*part == 0; };
  if (std::ranges::all_of(p.costs.exchange, takes_none)) return 0;
  schedule::Costs without = p.costs;
  for (schedule::ExchangeCost& cost : without.exchange) cost.*part = 0;
  return std::max(0.0, p.pipeline.step_time - schedule::simulate(plan.schedule, without).step_time);
}

// By stage, the exchanges within its passes.
std::vector<StageExchange> within_passes(const Plan& plan, const CostModel& costs) {
  std::vector<StageExchange> stages;
  for (int stage = 0; stage < plan.schedule.stages(); ++stage)
    stages.push_back(costs.of(plan.layers, stage).within);
  return stages;
}

schedule::ExchangeCost beside(const Prediction& p, int stage) {
  return p.costs.exchange.empty() ? schedule::ExchangeCost{} : p.costs.exchange[static_cast<size_t>(stage)];
}

ExchangeTime times_of_weights(const Plan& plan, const Prediction& p, const CostModel& costs) {
  ExchangeTime time{"weights"};
  const std::vector<StageExchange> within = within_passes(plan, costs);
  schedule::for_each_part(plan.compute, [&](const schedule::Action& part) {
    time.exposed += within[static_cast<size_t>(part.stage)].gather_of(part.kind);
  });
  time.total = time.exposed;
  schedule::for_each_part(plan.schedule, [&](const schedule::Action& part) {
    const bool gathers =
        p.costs.streamed ? schedule::needs_weights(part.kind) : part.kind == schedule::ActionKind::unshard;
    if (gathers) time.total += beside(p, part.stage).gather;
  });
  time.exposed = time.exposed / plan.schedule.ranks + exposed(plan, p, &schedule::ExchangeCost::gather);
  time.total /= plan.schedule.ranks;
  return time;
}

ExchangeTime times_of_gradients(const Plan& plan, const Prediction& p, const CostModel& costs) {
  ExchangeTime time{"gradients"};
  const std::vector<StageExchange> within = within_passes(plan, costs);
  schedule::for_each_part(plan.compute, [&](const schedule::Action& part) {
    if (schedule::is_weight_gradient(part.kind))
      time.exposed += within[static_cast<size_t>(part.stage)].reduce() / plan.schedule.ranks;
  });
  time.total = time.exposed;
  schedule::for_each_part(plan.schedule, [&](const schedule::Action& action) {
    if (action.kind == schedule::ActionKind::reduce_grad)
      time.total += beside(p, action.stage).reduce / plan.schedule.ranks;
  });
  time.exposed += exposed(plan, p, &schedule::ExchangeCost::reduce);
  return time;
}

// Time of tensors between stages, and of the embedding's shards after the passes.
ExchangeTime times_between_stages(const Plan& plan, const Prediction& p, const CostModel& costs) {
  ExchangeTime time{"pp"};
  schedule::for_each_part(plan.schedule, [&](const schedule::Action& action) {
    if (!schedule::is_receive(action.kind)) return;
    const int boundary = std::min(action.stage, schedule::other_stage(action));
    time.total += p.costs.latency[static_cast<size_t>(boundary)] / plan.schedule.ranks;
  });
  for (const schedule::RankTime& rank : p.pipeline.ranks)
    time.exposed += rank.wait_for_transfer / plan.schedule.ranks;
  time.total += costs.embedding_exchange();
  time.exposed += costs.embedding_exchange();
  return time;
}

// As schedule::peak_bytes takes them.
std::vector<schedule::StageBytes> bytes_in_passes(const CostModel& costs,
                                                  const pipeline::LayerAssignment& layers,
                                                  const schedule::Schedule& schedule) {
  const auto microbatches = static_cast<size_t>(costs.by_microbatch() ? schedule.microbatches : 1);
  std::vector<schedule::StageBytes> bytes;
  for (int stage = 0; stage < schedule.stages(); ++stage) {
    const std::vector<const StageForecast*> own = costs.of_microbatches(layers, stage);
    for (size_t i = 0; i < microbatches; ++i) bytes.push_back(own[i % own.size()]->bytes);
  }
  return bytes;
}

}  // namespace

std::vector<std::pair<std::string, int64_t>> RankBytes::kinds() const {
  return {{"weights", weights},     {"gathered", gathered},       {"gradients", gradients},
          {"optimizer", optimizer}, {"activations", activations}, {"buffers", buffers}};
}

std::vector<OptimizerCost> optimizer_costs(const CostModel& costs, const pipeline::LayerAssignment& layers,
                                           const schedule::Schedule& schedule) {
  std::vector<OptimizerCost> ranks(static_cast<size_t>(schedule.ranks));
  for (int stage = 0; stage < schedule.stages(); ++stage)
    ranks[static_cast<size_t>(schedule.rank_of(stage))] += costs.of(layers, stage).optimizer;
  return ranks;
}

std::vector<RankBytes> rank_bytes(const CostModel& costs, const pipeline::LayerAssignment& layers,
                                  const schedule::Schedule& schedule) {
  std::vector<RankBytes> ranks(static_cast<size_t>(schedule.ranks));
  for (int stage = 0; stage < schedule.stages(); ++stage) {
    const StageForecast& own = costs.of(layers, stage);
    RankBytes& rank = ranks[static_cast<size_t>(schedule.rank_of(stage))];
    rank.weights += own.held.weights;
    rank.gradients += own.held.gradients;
    rank.buffers = std::max(rank.buffers, own.sum_scratch);
  }
  const std::vector<OptimizerCost> optimizers = optimizer_costs(costs, layers, schedule);
  const auto peaks = schedule::peak_bytes(schedule, bytes_in_passes(costs, layers, schedule));
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const schedule::MemorySplit& peak = peaks[rank];
    ranks[rank].gathered = peak.gathered;
    ranks[rank].gradients += peak.reducing;
    ranks[rank].optimizer = optimizers[rank].held;
    // The optimizer steps when no activations are left.
    ranks[rank].activations =
        std::max(peak.activations + peak.weight_operands + peak.workspace, optimizers[rank].workspace);
    ranks[rank].buffers += peak.buffers;
  }
  return ranks;
}

Prediction predict(const Plan& plan, const CostSource& source) {
  return predict(plan, CostModel(plan, source));
}

Prediction predict(const Plan& plan, const CostModel& costs) {
  Prediction p;
  p.costs = simulation_costs(costs, plan.layers, plan.schedule);
  p.pipeline = schedule::simulate(plan.schedule, p.costs);
  p.bytes = rank_bytes(costs, plan.layers, plan.schedule);
  for (const OptimizerCost& own : optimizer_costs(costs, plan.layers, plan.schedule))
    p.optimizer_time.push_back(own.seconds);
  const bool post_validated = plan.job.optimizer.post_validation;
  const double embedding = post_validated ? 0 : costs.embedding_exchange();
  const double norm = post_validated ? 0 : costs.norm_exchange();
  const auto step_time = [&](double pipeline) {
    return pipeline + embedding + norm + costs.overhead() + std::ranges::max(p.optimizer_time);
  };
  double pipeline =
      post_validated ? schedule::post_validated_step_time(plan.schedule, p.costs) : p.pipeline.step_time;
  if (costs.load() > 1) {
    const double alone = p.pipeline.step_time;
    p.pipeline = costs.on_cores(plan.schedule, std::move(p.pipeline));
    pipeline *= p.pipeline.step_time / alone;
    for (double& seconds : p.optimizer_time) seconds *= costs.load();
  }
  p.step_time = step_time(pipeline);
  // With post-validation a step begins on some ranks while others end the one before: fill and drain overlap.
  for (const double own : p.optimizer_time)
    p.barrier.push_back(std::max(0.0, p.step_time - p.pipeline.step_time - own));
  p.tokens_per_s = static_cast<double>(tokens_of_step(plan)) / p.step_time;
  return p;
}

std::vector<ExchangeTime> exchange_times(const Plan& plan, const CostModel& costs,
                                         const Prediction& prediction) {
  std::vector<ExchangeTime> times = times_on_wires(plan, costs, prediction);
  times.push_back(times_of_weights(plan, prediction, costs));
  times.push_back(times_of_gradients(plan, prediction, costs));
  times.push_back(times_between_stages(plan, prediction, costs));
  std::erase_if(times, [](const ExchangeTime& time) { return time.total <= 0; });
  return times;
}

double Prediction::bubble() const {
  double idle = 0;
  for (size_t rank = 0; rank < barrier.size(); ++rank)
    idle += step_time - pipeline.ranks[rank].busy - optimizer_time[rank];
  return idle / (step_time * static_cast<double>(barrier.size()));
}

const RankBytes& Prediction::fullest() const {
  return *std::ranges::max_element(bytes, {}, &RankBytes::total);
}

int64_t Prediction::peak_bytes() const {
  return fullest().total();
}

}  // namespace pptrain::app

#include "app/plan/prediction.h"

#include <algorithm>

#include "core/optim/optimizer.h"
#include "models/footprint.h"
#include "parallel/schedule/cost/memory.h"

namespace pptrain::app {

namespace {

// What the ranks keep between steps.
std::vector<RankBytes> resident_bytes(const Plan& plan, const models::CostModel& costs) {
  const config::OptimizerSection& optimizer = plan.job.optimizer;
  const int64_t state = optim::optimizer_footprint(optimizer).held_bytes(optimizer.post_validation);
  std::vector<RankBytes> ranks(static_cast<size_t>(plan.schedule.ranks));
  for (int stage = 0; stage < plan.schedule.stages(); ++stage) {
    const models::StageFootprint& own = costs.footprint(models::stage_slice(plan.layers, stage));
    RankBytes& rank = ranks[plan.schedule.rank_of(stage)];
    rank.weights += own.weight_bytes;
    rank.gradients += own.gradient_bytes;
    rank.optimizer += state * own.parameters;
  }
  return ranks;
}

std::vector<RankBytes> peak_bytes(const Plan& plan, const models::CostModel& costs) {
  std::vector<schedule::StageBytes> stages;
  for (int stage = 0; stage < plan.schedule.stages(); ++stage)
    stages.push_back(costs.footprint(models::stage_slice(plan.layers, stage)).bytes());
  const auto peaks = schedule::peak_bytes(plan.schedule, stages);
  std::vector<RankBytes> ranks = resident_bytes(plan, costs);
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const schedule::MemorySplit& peak = peaks[rank].peak;
    ranks[rank].activations = peak.activations + peak.weight_operands + peak.workspace;
    ranks[rank].buffers = peak.buffers;
  }
  return ranks;
}

}  // namespace

Prediction predict(const Plan& plan, const CostSource& source) {
  const models::CostModel costs = make_cost_model(plan, source);
  const config::TrainSection& train = plan.job.train;
  const int64_t replicas = plan.mesh.dp_replicate;
  Prediction p;
  p.costs = simulation_costs(costs, plan.layers);
  p.pipeline = schedule::simulate(plan.schedule, p.costs);
  p.bytes = peak_bytes(plan, costs);
  for (const RankBytes& bytes : p.bytes) {
    const int64_t parameters = bytes.gradients / 4;
    p.optimizer_time.push_back(costs.optimizer(parameters) + costs.all_reduce(bytes.gradients, replicas));
  }
  const double slowest = std::ranges::max(p.optimizer_time);
  if (plan.job.optimizer.post_validation) {
    p.step_time =
        schedule::steady_step_time(plan.schedule, p.costs, schedule::StepBoundary::post_validation) +
        costs.overhead() + slowest;
  } else {
    p.step_time = p.pipeline.step_time + costs.exchange(plan.schedule.ranks) + costs.overhead() + slowest;
  }
  // With post-validation a step begins while others end the one before: fill and drain then overlap.
  for (const double own : p.optimizer_time)
    p.barrier.push_back(std::max(0.0, p.step_time - p.pipeline.step_time - own));
  const int64_t tokens = train.micro_batch_size * train.seq_len * train.grad_accum_steps * replicas;
  p.tokens_per_s = static_cast<double>(tokens) / p.step_time;
  return p;
}

double Prediction::bubble() const {
  double idle = 0;
  for (size_t rank = 0; rank < barrier.size(); ++rank)
    idle += step_time - pipeline.ranks[rank].busy - optimizer_time[rank];
  return idle / (step_time * static_cast<double>(barrier.size()));
}

int64_t Prediction::peak_bytes() const {
  return std::ranges::max(bytes, {}, &RankBytes::total).total();
}

}  // namespace pptrain::app

#include "app/plan/prediction.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>

#include "app/plan/measured_costs.h"
#include "app/plan/pipeline_plan.h"
#include "core/base/error.h"
#include "models/flops.h"
#include "models/workspace.h"
#include "parallel/schedule/cost/memory.h"
#include "parallel/schedule/passes/passes.h"

namespace pptrain::app {

namespace {

using config::JobConfig;

models::ModelConfig model_of(const JobConfig& job) {
  return models::make_model_config(job.model, job.train.seq_len);
}

bool is_trace(const std::string& costs) {
  return costs.ends_with(".json");
}

// What the ranks keep between steps.
std::vector<RankBytes> resident_bytes(const JobConfig& job, const models::ModelConfig& model,
                                      const schedule::Schedule& schedule,
                                      const pipeline::LayerAssignment& layers) {
  std::vector<RankBytes> ranks(static_cast<size_t>(schedule.ranks));
  for (int stage = 0; stage < schedule.stages(); ++stage) {
    const models::StageSize size =
        models::stage_size(model, models::stage_slice(layers, stage), job.train.dtype == "bf16");
    RankBytes& rank = ranks[schedule.rank_of(stage)];
    rank.weights += size.weight_bytes;
    rank.gradients += size.gradient_bytes;
    rank.optimizer += size.optimizer_bytes;
    if (job.optimizer.post_validation) rank.optimizer += size.previous_bytes();
  }
  return ranks;
}

std::vector<schedule::StageBytes> stage_bytes(const JobConfig& job, const models::ModelConfig& model,
                                              const pipeline::LayerAssignment& layers) {
  const int64_t tokens = job.train.micro_batch_size * job.train.seq_len;
  std::vector<schedule::StageBytes> result;
  for (size_t i = 0; i < layers.size(); ++i) {
    result.push_back(models::stage_bytes(model, models::stage_slice(layers, static_cast<int>(i)), tokens,
                                         job.train.dtype == "bf16",
                                         models::make_recompute(job.train.recompute)));
  }
  return result;
}

}  // namespace

const models::DeviceModel& default_device(const JobConfig& job) {
  return models::find_device(job.run.device == "cpu" ? "cpu" : "h100");
}

models::Workload workload_of(const JobConfig& job) {
  return {.batch = job.train.micro_batch_size,
          .seq = job.train.seq_len,
          .bfloat16 = job.train.dtype == "bf16",
          .threads = job.run.threads,
          .recompute = models::make_recompute(job.train.recompute),
          .keeps_previous = job.optimizer.post_validation};
}

CostSource make_cost_source(const JobConfig& job, const std::string& costs) {
  if (is_trace(costs)) return measured_costs(job, costs);
  const std::string name = costs.empty() ? std::string(default_device(job).name) : costs;
  return {.device = models::find_device(name), .description = "modelled for " + name};
}

models::CostModel make_cost_model(const JobConfig& job, const CostSource& source) {
  return {model_of(job), workload_of(job), source.device, source.calibration};
}

schedule::Costs simulation_costs(const models::CostModel& model, const pipeline::LayerAssignment& layers) {
  schedule::Costs costs;
  for (size_t i = 0; i < layers.size(); ++i)
    costs.stages.push_back(model.stage(models::stage_slice(layers, static_cast<int>(i))));
  costs.latency = {model.transfer()};
  return costs;
}

Prediction predict(const JobConfig& job, const CostSource& source) {
  const models::ModelConfig model = model_of(job);
  const models::CostModel costs = make_cost_model(job, source);
  Prediction p;
  p.layers = stage_layers(job, model.layers);
  p.lowered = training_schedule(job);
  p.compute = schedule::compute_only(p.lowered);
  p.costs = simulation_costs(costs, p.layers);
  p.pipeline = schedule::simulate(p.lowered, p.costs);

  p.bytes = resident_bytes(job, model, p.lowered, p.layers);
  const std::vector<schedule::PeakBytes> peaks =
      schedule::peak_bytes(p.lowered, stage_bytes(job, model, p.layers));
  const int64_t replicas = job.distributed.dp_replicate;
  for (int rank = 0; rank < p.lowered.ranks; ++rank) {
    RankBytes& bytes = p.bytes[rank];
    const schedule::MemorySplit& peak = peaks[rank].peak;
    bytes.activations = peak.activations + peak.weight_operands + peak.workspace;
    bytes.buffers = peak.buffers;
    const int64_t parameters = bytes.gradients / 4;
    p.optimizer_time.push_back(costs.optimizer(parameters) + costs.all_reduce(bytes.gradients, replicas));
  }
  const double slowest = std::ranges::max(p.optimizer_time);
  if (job.optimizer.post_validation) {
    p.step_time = schedule::steady_step_time(p.lowered, p.costs, schedule::StepBoundary::post_validation) +
                  costs.overhead() + slowest;
  } else {
    p.step_time = p.pipeline.step_time + costs.exchange(p.lowered.ranks) + costs.overhead() + slowest;
  }
  // With post-validation a step begins while others end the one before: fill and drain then overlap.
  for (const double own : p.optimizer_time)
    p.barrier.push_back(std::max(0.0, p.step_time - p.pipeline.step_time - own));
  p.tokens_per_s = static_cast<double>(job.train.micro_batch_size * job.train.seq_len *
                                       job.train.grad_accum_steps * replicas) /
                   p.step_time;
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

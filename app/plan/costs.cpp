#include "app/plan/costs.h"

#include <spdlog/fmt/fmt.h>

#include <utility>

#include "app/plan/measured_costs.h"
#include "app/plan/plan.h"
#include "app/plan/stage_recompute.h"
#include "core/optim/optimizer.h"
#include "models/transformer_stage.h"

namespace pptrain::app {

const models::DeviceModel& default_device(const config::JobConfig& job) {
  return models::find_device(job.run.device == "cpu" ? "cpu" : "h100");
}

CostSource make_cost_source(const PlanBase& base, const std::string& costs) {
  if (costs.ends_with(".json")) return measured_costs(base, costs);
  const std::string name = costs.empty() ? std::string(default_device(base.job).name) : costs;
  return {.device = models::find_device(name), .description = fmt::format("modelled for {}", name)};
}

models::Workload workload_of(const config::JobConfig& job) {
  const std::vector<std::string>& words = job.train.recompute;
  std::vector<models::Recompute> recompute;
  for (int stage = 0; words.size() > 1 && stage < static_cast<int>(words.size()); ++stage)
    recompute.push_back(stage_recompute(words, stage));
  return {.batch = {.documents = job.train.micro_batch_size,
                    .length = job.train.seq_len,
                    .bfloat16 = job.train.dtype == "bf16",
                    .recompute = models::make_recompute(words.front()),
                    .device = job.run.device == "cpu" ? at::kCPU : at::kCUDA},
          .recompute = std::move(recompute),
          .threads = job.run.threads,
          .optimizer_bytes =
              optim::optimizer_footprint(job.optimizer).moved_bytes(job.optimizer.post_validation)};
}

models::CostModel make_cost_model(const PlanBase& base, const CostSource& source) {
  return {base.model, workload_of(base.job), source.device, source.calibration};
}

schedule::Costs simulation_costs(const models::CostModel& model, const pipeline::LayerAssignment& layers) {
  schedule::Costs costs;
  for (size_t i = 0; i < layers.size(); ++i)
    costs.stages.push_back(model.stage(models::stage_slice(layers, static_cast<int>(i))));
  costs.latency = {model.transfer()};
  return costs;
}

}  // namespace pptrain::app

// pptrain check
#include <spdlog/fmt/fmt.h>

#include "app/commands/commands.h"
#include "app/plan/load_plan.h"
#include "core/config/loader.h"
#include "models/flops.h"
#include "models/transformer_stage.h"

namespace pptrain::app {

namespace {

std::string in_units(int64_t bytes) {
  const double value = static_cast<double>(bytes);
  return value >= 1e9 ? fmt::format("{:.2f} GB", value / 1e9) : fmt::format("{:.1f} MB", value / 1e6);
}

}  // namespace

int check(const JobArguments& arguments) {
  const Plan plan = load_plan(arguments.config, arguments.set);
  const config::JobConfig& job = plan.job;
  const bool bf16 = job.train.dtype == "bf16";
  const int64_t rows = job.train.micro_batch_size * job.train.seq_len;

  fmt::print("{}\n", config::to_toml(job));
  fmt::print("# world size  {} ({})\n", plan.mesh.world_size(), plan.mesh.describe());
  fmt::print("# tokens a step  {}\n", rows * job.train.grad_accum_steps * job.distributed.dp_replicate);
  fmt::print(
      "# stage  layers      parameters     weights   gradients   optimizer  activations of one microbatch\n");
  for (size_t i = 0; i < plan.layers.size(); ++i) {
    const models::StageSlice slice = models::stage_slice(plan.layers, static_cast<int>(i));
    const models::StageSize size = models::stage_size(plan.model, slice, bf16);
    const int64_t kept = job.optimizer.post_validation ? size.previous_bytes() : 0;
    const bool copy = plan.model.tied && slice.head;
    fmt::print("# {:5}  {:>6}  {:>14}  {:>10}  {:>10}  {:>10}  {:>10}{}\n", i,
               fmt::format("{}..{}", slice.first_layer, slice.end_layer - 1), size.parameters,
               in_units(size.weight_bytes), in_units(size.gradient_bytes),
               in_units(size.optimizer_bytes + kept),
               in_units(models::activation_bytes(plan.model, slice, rows, bf16)),
               copy ? "  (holds a copy of the tied embedding)" : "");
  }
  fmt::print("# parameters  {}\n", models::parameter_count(plan.model));
  return 0;
}

}  // namespace pptrain::app

// pptrain check
#include <spdlog/fmt/fmt.h>

#include <CLI/CLI.hpp>

#include "app/commands/commands.h"
#include "app/commands/job_options.h"
#include "app/data/inspection.h"
#include "app/forecast/costs.h"
#include "app/forecast/footprint.h"
#include "app/resolve/load_plan.h"
#include "core/config/loader.h"
#include "core/config/validate.h"
#include "models/flops.h"
#include "models/transformer_stage.h"

namespace pptrain::app {

namespace {

std::string in_units(int64_t bytes) {
  const double value = static_cast<double>(bytes);
  return value >= 1e9 ? fmt::format("{:.2f} GB", value / 1e9) : fmt::format("{:.1f} MB", value / 1e6);
}

}  // namespace

CLI::App* add_check(CLI::App& cli, JobArguments& arguments) {
  CLI::App* check = cli.add_subcommand(
      "check", "Validate a job and print it resolved, with parameters and bytes per stage");
  add_job_options(*check, arguments);
  return check;
}

int check(const JobArguments& arguments) {
  const Plan plan =
      load_plan(arguments.config, arguments.set, {.world = arguments.world, .inspect = inspect_all});
  const config::JobConfig& job = plan.job;
  const int64_t rows = job.train.micro_batch_size * job.train.seq_len;

  fmt::print("{}\n", config::to_toml(job));
  fmt::print("# world size  {} ({})\n", plan.mesh.world_size(), plan.mesh.describe());
  fmt::print("# tokens a step  {}{}\n", job.data.lengths == config::Lengths::fixed ? "" : "at most ",
             rows * job.train.grad_accum_steps * plan.mesh.size(mesh::Group::batch));
  fmt::print("# of a rank with the stage:\n");
  fmt::print(
      "# stage  layers      parameters     weights    gathered   gradients   optimizer  activations of one "
      "microbatch\n");
  const CostModel costs(plan.model, workload_of(plan), default_device(job));
  for (size_t i = 0; i < plan.layers.size(); ++i) {
    const models::StageSlice slice = models::stage_slice(plan.layers, static_cast<int>(i));
    const StageFootprint& own = costs.footprint(slice);
    const bool copy = plan.model.tied && slice.head;
    const HeldBytes held = held_bytes(own, costs.workload().sharding);
    fmt::print("# {:5}  {:>6}  {:>14}  {:>10}  {:>10}  {:>10}  {:>10}  {:>10}{}\n", i,
               fmt::format("{}..{}", slice.first_layer, slice.end_layer - 1), own.parameters,
               in_units(held.weights), in_units(held.gathered), in_units(held.gradients + held.reducing),
               in_units(costs.optimizer(slice).held), in_units(own.activation),
               copy ? "  (holds a copy of the tied embedding)" : "");
  }
  fmt::print("# parameters  {}\n", models::parameter_count(plan.model));
  for (const auto& warnings : {config::warnings(job), data_warnings(job)}) {
    for (const std::string& warning : warnings) fmt::print("# warning: {}\n", warning);
  }
  return 0;
}

}  // namespace pptrain::app

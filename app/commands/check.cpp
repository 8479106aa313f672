// pptrain check
#include <spdlog/fmt/fmt.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "app/commands/command_line.h"
#include "app/commands/commands.h"
#include "app/commands/job_options.h"
#include "app/data/datasets.h"
#include "app/data/inspection.h"
#include "app/forecast/costs.h"
#include "app/forecast/footprint.h"
#include "app/forecast/memory_fit.h"
#include "app/launch/core_check.h"
#include "app/launch/memory_check.h"
#include "app/resolve/load_plan.h"
#include "app/run/run_lock.h"
#include "app/run/start_choice.h"
#include "core/base/cores.h"
#include "core/base/error.h"
#include "core/base/host_memory.h"
#include "core/base/process.h"
#include "core/base/text.h"
#include "core/config/loader.h"
#include "core/config/validate.h"
#include "core/kernels/device_name.h"
#include "core/metrics/progress_text.h"
#include "models/flops.h"
#include "models/stage_slice.h"

namespace pptrain::app {

namespace {

struct CheckArguments : JobArguments {
  bool resolved = false;
};

// The contents of each stage, after the job itself.
void print_resolved(const Plan& plan) {
  const config::JobConfig& job = plan.job;
  fmt::print("\n{}\n", config::to_toml(job));
  fmt::print("# Per rank:\n");
  fmt::print(
      "# stage  layers      parameters     weights    gathered   gradients   optimizer  activations of one "
      "microbatch\n");
  const CostModel costs(plan, {.device = default_device(job)});
  for (size_t i = 0; i < plan.layers.size(); ++i) {
    const models::StageSlice slice = costs.slice(plan.layers, static_cast<int>(i));
    const StageFootprint& own = costs.footprint(slice);
    const bool copy = plan.model.tied && slice.head;
    const HeldBytes& held = costs.of(slice).held;
    fmt::print("# {:5}  {:>6}  {:>14}  {:>10}  {:>10}  {:>10}  {:>10}  {:>10}{}\n", i,
               fmt::format("{}..{}", slice.first_layer, slice.end_layer - 1), own.parameters,
               in_units(held.weights), in_units(held.gathered), in_units(held.gradients + held.reducing),
               in_units(costs.optimizer(slice).held), in_units(own.activation),
               copy ? "  (holds a copy of the tied embedding)" : "");
  }
}

// One line: the question, the answer, and the figures. Returns whether the answer is yes.
bool say(std::string_view what, const std::string& problem, const std::string& figures) {
  fmt::print("{:<7} {:<3} {}\n", what, problem.empty() ? "OK" : "no",
             printable(problem.empty() ? figures : problem));
  return problem.empty();
}

bool say_job(const Plan& plan) {
  const config::JobConfig& job = plan.job;
  return say(
      "job", "",
      fmt::format("{} of {}, {}{}, {}{} tokens a step", job.model.arch, models::parameters_text(plan.model),
                  job.train.dtype.text, plan.model.fp8 ? " and FP8" : "",
                  job.data.lengths == config::Lengths::fixed ? "" : "at most ",
                  metrics::with_commas(job.train.micro_batch_size * job.train.seq_len *
                                       job.train.grad_accum_steps * plan.mesh.size(mesh::Group::batch))));
}

// As if all ranks ran on this host.
bool say_world(const Plan& plan) {
  const int ranks = plan.mesh.world_size();
  const bool on_cpu = plan.job.run.device == config::Device::cpu;
  const std::string crowding =
      on_cpu ? describe_crowding(ranks_here(ranks, plan.job.run.threads, process_cores())) : "";
  return say("world", "",
             fmt::format("{} rank{} ({}){}{}", ranks, ranks == 1 ? "" : "s", plan.mesh.describe(),
                         crowding.empty() ? "" : "; ", crowding));
}

bool say_device(const Plan& plan) {
  const config::JobConfig& job = plan.job;
  if (job.run.device == config::Device::cpu)
    return say("device", "",
               fmt::format("cpu, {} per rank",
                           job.run.threads == 1 ? "1 thread" : fmt::format("{} threads", job.run.threads)));
  const int count = kernels::gpu_count();
  std::string fault = count > 0 ? "" : "run.device = \"cuda\", but no GPU was found here";
  if (job.train.fp8 != config::Fp8::off) {
    const int used = std::min(count, plan.mesh.world_size());
    for (int gpu = 0; gpu < used && fault.empty(); ++gpu)
      fault = kernels::why_no_fp8(c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(gpu)));
  }
  return say("device", fault, fmt::format("cuda, {} GPU{} here", count, count == 1 ? "" : "s"));
}

bool say_memory(const Plan& plan, int64_t program) {
  const std::optional<MemoryFit> fit = fit_here(plan, program);
  if (!fit) return say("memory", "", "the system does not tell what is available");
  const bool starts = fit->fits() || plan.job.run.force_memory;
  if (!fit->of_host) return say("memory", starts ? "" : fit->shortage(), fit->describe());
  return say("memory", starts ? "" : fit->shortage(),
             fmt::format("needs {}, and {} in each process for the program; {} are available here",
                         in_units(static_cast<int64_t>(fit->needed) - program), in_units(program),
                         in_units(static_cast<int64_t>(fit->room))));
}

bool say_data(const config::JobConfig& job) {
  size_t count = 0;
  uintmax_t bytes = 0;
  for (const StreamFiles& stream : streams_of(job, Wanted::all)) {
    for (const std::filesystem::path& file : stream.files()) {
      ++count;
      bytes += std::filesystem::file_size(file);
    }
  }
  return say("data", "",
             fmt::format("{} file{}, {} bytes", count, count == 1 ? "" : "s",
                         metrics::with_commas(static_cast<int64_t>(bytes))));
}

// What the start would go on from, and whether it may.
bool say_run(const config::JobConfig& job) {
  std::string passed_over;
  checkpoint::KnownProblems known;
  try {
    if (const LockState lock = look_at_lock(job.run.dir); lock.held == true)
      return say("run", taken_message(job.run.dir, lock.holder), "");
    const Start start = find_start(
        job, data_fingerprint(job), base_of(job), MemoryFolder(job.run.dir),
        [&](const std::string& text) { passed_over += "; " + text; }, known);
    std::string figures = start.checkpoint.empty() ? fmt::format("a new run in {}", job.run.dir)
                                                   : fmt::format("goes on from {}", start.checkpoint);
    if (!start.remark.empty()) figures += "; " + start.remark;
    for (const std::string& remark : start.terms.remarks) figures += "; " + remark;
    return say("run", "", figures + passed_over);
  } catch (const Error& error) {
    return say("run", error.what(), "");
  }
}

CLI::App* declare_check(CLI::App& cli, CheckArguments& arguments) {
  CLI::App* check = cli.add_subcommand(
      "check", "Validates a job; exit code 0: it would start here, 4: it would not, 2: the job is wrong");
  add_job_options(*check, arguments);
  check->add_flag("--resolved", arguments.resolved,
                  "Also print the resolved job, and the bytes of each stage");
  return check;
}

int check(const CheckArguments& arguments) {
  const int64_t program = program_bytes();
  const Plan plan =
      load_plan(arguments.config, arguments.set, {.world = arguments.world, .inspect = inspect_all});
  const config::JobConfig& job = plan.job;
  // Each line is printed, whatever the earlier answers are.
  const std::array answers{say_job(plan), say_world(plan), say_device(plan), say_memory(plan, program),
                           say_data(job), say_run(job)};
  for (const std::string& note : plan.notes) fmt::print("{}\n", printable(note));
  for (const auto& warnings :
       {config::warnings(job), data_warnings(job), target_warnings(job), model_warnings(plan)}) {
    for (const std::string& warning : warnings) fmt::print("warning: {}\n", printable(warning));
  }
  const bool starts = std::ranges::all_of(answers, std::identity());
  fmt::print("{}\n", starts ? "It would start here." : "It would not start here.");
  if (arguments.resolved) print_resolved(plan);
  return starts ? exit_done : exit_not_here;
}

}  // namespace

void add_check(CommandLine& line) {
  line.add(declare_check, check);
}

}  // namespace pptrain::app

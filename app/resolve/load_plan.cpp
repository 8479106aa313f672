#include "app/resolve/load_plan.h"

#include <spdlog/fmt/fmt.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "app/plan/run_files.h"
#include "app/resolve/choose_plan.h"
#include "app/resolve/given_pipeline.h"
#include "app/resolve/job_checks.h"
#include "core/base/error.h"
#include "core/config/document.h"
#include "core/config/given_job.h"
#include "core/config/loader.h"
#include "models/hf_directory.h"

namespace pptrain::app {

namespace {

using config::JobConfig;
using config::ReportConflict;

using FinishJob = decltype(config::Hooks::finish);

config::Hooks hooks(FinishJob finish, const LoadOptions& options) {
  return {.read_hf_config = models::read_hf_model,
          .finish_model = models::finish_model,
          .finish = std::move(finish),
          .world = options.world,
          .needs_files = options.needs_files};
}

// Nothing if a fault was reported.
std::optional<Plan> resolve(JobConfig& job, const ReportConflict& report, bool sound,
                            const LoadOptions& options) {
  const ReportConflict note = [&](auto keys, const std::string& text) {
    sound = false;
    report(keys, text);
  };
  GivenPipeline given = check_pipeline(job, note, sound);
  if (!sound) return std::nullopt;
  PlanBase base = plan_base(job);
  check_job(base, note);
  if (options.trains && options.needs_files) report_bad_paths(job, note);
  if (!sound) return std::nullopt;
  std::optional<Plan> plan = choose_plan(std::move(base), std::move(given), options.awaits_choices, note);
  if (plan) report_gpu_blocks(*plan, report);
  return plan;
}

// Reduces the pipeline to what forward passes need: a stage on each rank.
void simplify_pipeline(JobConfig& job) {
  config::DistributedSection& d = job.distributed;
  d.pp_schedule = "gpipe";  // takes any number of microbatches
  d.pp_stages_per_rank = 0;
  d.pp_split = {};
  d.pp_head = config::HeadPlace::last;
  d.settle_slices();
  d.pp_embedding_weight = d.pp_head_weight = d.pp_memory_gb = 0;
  job.train.recompute = config::Recompute::none;
}

// For a job that does not train.
std::optional<Plan> resolve_for_reading(JobConfig& job, const ReportConflict& report, bool sound,
                                        const LoadOptions& options) {
  if (sound) {
    JobConfig trained = job;
    if (auto plan = resolve(
            trained, [](auto, const std::string&) {}, sound, options))
      return plan;
    simplify_pipeline(job);
  }
  return resolve(job, report, sound, options);
}

// Leaves the plan in `plan` unless there are faults, which the loader then throws.
FinishJob resolve_into(std::optional<Plan>& plan, const LoadOptions& options,
                       const std::optional<RunChoices>& choices) {
  return [&](JobConfig& job, const ReportConflict& report, bool sound) {
    const bool whole_head = !options.trains && job.distributed.pp_head == config::HeadPlace::last;
    if (choices) choices->take(job, whole_head ? "distributed.pp_head" : "");
    plan = options.trains ? resolve(job, report, sound, options)
                          : resolve_for_reading(job, report, sound, options);
    if (plan) plan->reads_data = options.reads_data;
    if (plan && options.inspect) options.inspect(*plan, report);
  };
}

// `read`: reads a job, given hooks and the value of an absent warmup_steps.
template <class Read>
Plan plan_of(const Read& read, const LoadOptions& options) {
  std::optional<Plan> plan;
  const std::optional<RunChoices> choices =
      options.choices_of.empty() ? std::nullopt : RunChoices::read(options.choices_of);
  config::Hooks with = hooks(resolve_into(plan, options, choices), options);
  if (choices && options.world == 0) with.world = choices->world_size();
  config::GivenJob given = read(with, choices ? choices->warmup_steps() : std::nullopt);
  if (options.world != 0)
    (options.of_processes ? mesh::check_processes : mesh::check_world_size)(plan->mesh,
                                                                            static_cast<int>(options.world));
  plan->given = std::move(given.given);
  plan->notes = std::move(given.notes);
  return *std::move(plan);
}

// The longest pipeline that has fewer ranks than the job's and a process for each, and whether `load` takes
// it without choices: every process asks alike. Nothing if there is none.
template <class Load>
std::optional<int> fitting_pp(const Plan& plan, int processes, const Load& load) {
  const int of_stage = plan.mesh.world_size() / plan.mesh.pp;
  if (processes >= plan.mesh.world_size() || plan.bits_depend_on_pp) return std::nullopt;
  for (int pp = processes / of_stage; pp >= 1; --pp) {
    try {
      load(pp, /*awaits_choices=*/true);
      return pp;
    } catch (const UsageError&) {
      // This length does not fit the job's schedule, split or microbatches.
    }
  }
  return std::nullopt;
}

std::string describe_fit(const Plan& plan, const Plan& fitted, int processes) {
  const int spare = fitted.spare_processes;
  return fmt::format(
      "{} ranks, but {} process{}: the pipeline has {} rank{} instead of {}, with the same bits{}",
      plan.mesh.world_size(), processes, processes == 1 ? "" : "es", fitted.mesh.pp,
      fitted.mesh.pp == 1 ? "" : "s", plan.mesh.pp,
      spare == 0 ? "" : fmt::format("; {} process{} spare", spare, spare == 1 ? " is" : "es are"));
}

}  // namespace

Plan load_plan(const std::string& path, std::span<const std::string> overrides, const LoadOptions& options) {
  // pp: instead of the job's; 0: the job's.
  const auto load = [&](int pp, bool awaits_choices) {
    std::vector<std::string> set(overrides.begin(), overrides.end());
    LoadOptions with_options = options;
    with_options.awaits_choices = awaits_choices;
    if (options.gives_logits) set.push_back(config::by_command("distributed.pp_head=last"));
    if (pp > 0) {
      set.push_back(fmt::format("distributed.pp={}", pp));
      with_options.world = 0;
    }
    return plan_of([&](const config::Hooks& with,
                       auto warmup) { return config::load_given_job(path, set, with, warmup); },
                   with_options);
  };
  if (!options.fits_pipeline) return load(0, options.awaits_choices);
  Plan plan = load(0, /*awaits_choices=*/true);
  const auto processes = static_cast<int>(options.world);
  const std::optional<int> pp = fitting_pp(plan, processes, load);
  if (!pp) return plan.order == Order::awaited ? load(0, options.awaits_choices) : plan;
  Plan fitted = load(*pp, options.awaits_choices);
  fitted.full_ranks = plan.mesh.world_size();
  fitted.spare_processes = processes - fitted.mesh.world_size();
  fitted.given = std::move(plan.given);
  fitted.notes.push_back(describe_fit(plan, fitted, processes));
  return fitted;
}

Plan parse_plan(const std::string& text, const std::string& name, std::span<const std::string> overrides,
                const LoadOptions& options) {
  return plan_of([&](const config::Hooks& with,
                     auto warmup) { return config::parse_given_job(text, name, overrides, with, warmup); },
                 options);
}

PlanBase load_plan_base(const std::string& path, std::span<const std::string> overrides,
                        const LoadOptions& options) {
  return plan_base(config::load_job(path, overrides,
                                    hooks([](JobConfig& job, const ReportConflict& report,
                                             bool) { check_pipeline_for_search(job, report); },
                                          options)));
}

}  // namespace pptrain::app

#include "app/plan/job.h"

#include <spdlog/fmt/fmt.h>

#include <optional>

#include "app/plan/pipeline_plan.h"
#include "app/plan/search.h"
#include "core/base/error.h"
#include "core/config/nearest.h"
#include "parallel/schedule/generators/generators.h"
#include "parallel/schedule/render/csv.h"

namespace pptrain::app {

namespace {

using config::JobConfig;
using config::ReportConflict;

constexpr const char* schedule_key = "distributed.pp_schedule";
constexpr const char* stages_key = "distributed.pp_stages_per_rank";
constexpr const char* split_key = "distributed.pp_split";

// The plain name of a schedule that trains; nothing, and a report, where there is none.
std::optional<std::string> schedule_name(const std::string& given, const ReportConflict& report) {
  const std::vector<std::string> names = schedule::training_schedule_names();
  try {
    std::string name = schedule::canonical_schedule_name(given);
    if (name != "inference") return name;
    report({schedule_key}, "\"inference\" has forward passes alone: it cannot train");
  } catch (const UsageError& error) {
    const bool planned = schedule::is_planned_schedule(given);
    report({schedule_key},
           planned
               ? error.what()
               : fmt::format("\"{}\" is not a schedule; did you mean \"{}\"? Valid: {}, or a file ending in "
                             ".csv",
                             given, config::nearest(given, names), fmt::join(names, ", ")));
  }
  return std::nullopt;
}

// Reads the file and compares it with the job.
void check_file(JobConfig& job, const ReportConflict& report) {
  try {
    const schedule::Schedule file = schedule::load_schedule(job.distributed.pp_schedule);
    const auto differs = [&](const char* key, int64_t given, int in_file, const char* what) {
      if (given == in_file) return;
      report({key, schedule_key}, fmt::format("{} = {}, but the schedule in {} has {} {}",
                                              std::string(key).substr(std::string(key).rfind('.') + 1), given,
                                              job.distributed.pp_schedule, in_file, what));
    };
    if (file.forward_only)
      report({schedule_key}, fmt::format("{} has forward passes alone: it cannot train", file.name));
    differs("distributed.pp", job.distributed.pp, file.ranks, "ranks");
    differs("train.grad_accum_steps", job.train.grad_accum_steps, file.microbatches, "microbatches");
    if (job.distributed.pp_stages_per_rank == 0) job.distributed.pp_stages_per_rank = file.stages_per_rank;
    differs(stages_key, job.distributed.pp_stages_per_rank, file.stages_per_rank, "stages per rank");
  } catch (const UsageError& error) {
    report({schedule_key}, error.what());
  }
}

// The generator says what its schedule does not allow; whether it is the number of stages per rank shows when
// that is left to the schedule.
std::optional<schedule::Schedule> generate(const JobConfig& job, int64_t stages_per_rank,
                                           std::string& reason) {
  JobConfig tried = job;
  tried.distributed.pp_stages_per_rank = stages_per_rank;
  try {
    return training_compute(tried);
  } catch (const UsageError& error) {
    reason = error.what();
    return std::nullopt;
  }
}

void check_schedule(JobConfig& job, const ReportConflict& report) {
  config::DistributedSection& d = job.distributed;
  if (config::to_lower(d.pp_schedule) == "auto") {
    d.pp_schedule = "auto";
    return;
  }
  if (is_schedule_file(d.pp_schedule)) return check_file(job, report);
  const std::optional<std::string> name = schedule_name(d.pp_schedule, report);
  if (!name) return;
  d.pp_schedule = *name;
  std::string reason, ignored;
  if (const auto made = generate(job, d.pp_stages_per_rank, reason)) {
    d.pp_stages_per_rank = made->stages_per_rank;
  } else if (d.pp_stages_per_rank != 0 && generate(job, 0, ignored)) {
    report({stages_key, schedule_key}, reason);
  } else {
    report({"train.grad_accum_steps", "distributed.pp", schedule_key}, reason);
  }
}

void check_split(JobConfig& job, const ReportConflict& report) {
  config::DistributedSection& d = job.distributed;
  if (d.pp_split != config::PipelineSplit()) {
    for (const auto& [key, weight] : {std::pair("distributed.pp_embedding_weight", d.pp_embedding_weight),
                                      std::pair("distributed.pp_head_weight", d.pp_head_weight)}) {
      if (weight != 0)
        report({key, split_key},
               "acts on an even split alone, but pp_split is another: remove one of the two");
    }
  }
  if (config::to_lower(d.pp_split.text) == "cost") {
    d.pp_split.text = "cost";
    return;
  }
  if (d.pp_schedule == "auto") return;
  if (job.model.num_hidden_layers == 0 || d.pp_stages_per_rank == 0) return;  // reported already
  try {
    stage_layers(job, job.model.num_hidden_layers);
  } catch (const UsageError& error) {
    report({split_key, "distributed.pp", stages_key, "model.num_hidden_layers", "model.hf_dir"},
           fmt::format("{} (distributed.pp = {} ranks of {} stage{})", error.what(), d.pp,
                       d.pp_stages_per_rank, d.pp_stages_per_rank == 1 ? "" : "s"));
  }
}

void check_job(JobConfig& job, const ReportConflict& report) {
  check_schedule(job, report);
  check_split(job, report);
}

// The best of the search; what no rank can hold is reported.
void choose_schedule(JobConfig& job, const CostSource& costs, const ReportConflict& report) {
  const double budget = memory_budget(job, costs);
  const std::vector<Candidate> found = search(job, costs, {.budget = budget});
  if (found.front().fits) {
    job = found.front().job;
    return;
  }
  const Candidate& leanest = found.front();
  report({"distributed.pp_memory_gb", schedule_key, "distributed.pp"},
         fmt::format("no schedule fits into {:.2f} GB a rank: the leanest, {} with recompute = \"{}\", needs "
                     "{:.2f} GB. Use more ranks, or smaller microbatches",
                     budget / 1e9, leanest.job.distributed.pp_schedule, leanest.job.train.recompute,
                     static_cast<double>(leanest.prediction.peak_bytes()) / 1e9));
}

void choose(JobConfig& job, const ReportConflict& report) {
  const bool automatic = job.distributed.pp_schedule == "auto";
  if (!automatic && job.distributed.pp_split.text != "cost") return;
  try {
    const CostSource costs = make_cost_source(job, job.distributed.pp_costs);
    if (automatic) {
      choose_schedule(job, costs, report);
    } else {
      set_split(job, cost_split(job, costs));
    }
  } catch (const UsageError& error) {
    report({"distributed.pp_costs", schedule_key, split_key, "distributed.pp"}, error.what());
  }
}

}  // namespace

bool is_schedule_file(const std::string& pp_schedule) {
  return config::to_lower(pp_schedule).ends_with(".csv");
}

void finish_job(JobConfig& job, const ReportConflict& report, bool sound) {
  bool good = sound;
  check_job(job, [&](std::initializer_list<std::string_view> options, const std::string& text) {
    good = false;
    report(options, text);
  });
  if (good) choose(job, report);
}

JobConfig load_job(const JobArguments& arguments) {
  return config::load_job(arguments.config, arguments.set, finish_job);
}

JobConfig load_open_job(const JobArguments& arguments) {
  return config::load_job(arguments.config, arguments.set,
                          [](JobConfig& job, const ReportConflict& report, bool) { check_job(job, report); });
}

}  // namespace pptrain::app

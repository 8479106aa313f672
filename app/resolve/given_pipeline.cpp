#include "app/resolve/given_pipeline.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "app/plan/plan.h"
#include "core/base/error.h"
#include "core/config/nearest.h"
#include "parallel/schedule/generators/generators.h"

namespace pptrain::app {

namespace {

using config::JobConfig;
using config::ReportConflict;

constexpr const char* schedule_key = "distributed.pp_schedule";
constexpr const char* stages_key = "distributed.pp_stages_per_rank";
constexpr const char* split_key = "distributed.pp_split";

// Is the schedule unknown until costs are known?
bool is_open(ScheduleChoice choice) {
  return choice == ScheduleChoice::automatic || choice == ScheduleChoice::search;
}

// The plain name of a schedule that trains; nothing, and a report, if there is none.
std::optional<std::string> schedule_name(const std::string& given, const ReportConflict& report) {
  const std::vector<std::string> names = schedule::training_schedule_names();
  try {
    std::string name = schedule::canonical_schedule_name(given);
    if (std::ranges::find(names, name) != names.end()) return name;
    report({schedule_key}, fmt::format("\"{}\" has forward passes alone: it cannot train", name));
  } catch (const UsageError& error) {
    const bool by_option = schedule::is_schedule_by_option(given);
    std::string guess = config::nearest(given, names);
    if (!guess.empty()) guess = '"' + guess + '"';
    report({schedule_key},
           by_option ? error.what()
                     : fmt::format(
                           "\"{}\" is not a schedule{} Valid: {}, auto, search, or a file ending in .csv",
                           given, guess.empty() ? "." : config::did_you_mean(guess), fmt::join(names, ", ")));
  }
  return std::nullopt;
}

// The generator's error says what its schedule does not allow.
std::optional<schedule::Schedule> generate(const schedule::ScheduleSpec& spec, std::string& reason) {
  try {
    return schedule::make_schedule(spec);
  } catch (const UsageError& error) {
    reason = error.what();
    return std::nullopt;
  }
}

class Checker {
 public:
  Checker(JobConfig& job, const ReportConflict& report, bool sound)
      : job_(job), sound_(sound), report_([this, &report](auto options, const std::string& text) {
          sound_ = false;
          report(options, text);
        }) {}

  GivenPipeline check() {
    check_schedule();
    check_batch_steps();
    check_split();
    check_recompute();
    return std::move(given_);
  }

  void check_for_search() {
    config::DistributedSection& d = job_.distributed;
    if (schedule_choice(d.pp_schedule) == ScheduleChoice::name) schedule_name(d.pp_schedule, report_);
    d.pp_schedule = "auto";
    check_split();
    check_recompute();
  }

 private:
  bool is_too_long();
  void check_schedule();
  void check_batch_steps();
  void check_file();
  void check_split();
  void check_recompute();

  JobConfig& job_;
  bool sound_;
  ReportConflict report_;
  GivenPipeline given_;
};

// Lists of actions are made, proven and walked one by one: here a surplus digit is found before it takes
// hours.
bool Checker::is_too_long() {
  constexpr int64_t max_passes = int64_t{1} << 21;
  const config::DistributedSection& d = job_.distributed;
  const int64_t microbatches = job_.train.grad_accum_steps * d.slices();
  const int64_t stages = std::max<int64_t>(1, d.pp) * std::max<int64_t>(1, d.pp_stages_per_rank);
  if (microbatches <= max_passes / stages) return false;
  report_({"train.grad_accum_steps", "distributed.pp", stages_key},
          fmt::format("{} microbatches through {} stages: a schedule has {} forward passes at most. Use "
                      "larger microbatches, or more data ranks",
                      microbatches, stages, max_passes));
  return true;
}

void Checker::check_schedule() {
  config::DistributedSection& d = job_.distributed;
  if (is_too_long()) return;
  const ScheduleChoice choice = schedule_choice(d.pp_schedule);
  if (is_open(choice)) {
    d.pp_schedule = choice == ScheduleChoice::automatic ? "auto" : "search";
    return;
  }
  if (choice == ScheduleChoice::file) return check_file();
  const std::optional<std::string> name = schedule_name(d.pp_schedule, report_);
  if (!name) return;
  d.pp_schedule = *name;
  std::string reason, ignored;
  schedule::ScheduleSpec spec = schedule_spec(job_);
  given_.compute = generate(spec, reason);
  if (given_.compute) {
    d.pp_stages_per_rank = given_.compute->stages_per_rank;
    return;
  }
  // To find whether the number of stages per rank is the fault, leaves it to the schedule.
  const bool stages_given = std::exchange(spec.stages_per_rank, 0) != 0;
  if (stages_given && generate(spec, ignored)) {
    report_({stages_key, schedule_key}, reason);
  } else {
    report_({"train.grad_accum_steps", "distributed.pp", schedule_key}, reason);
  }
}

// The job's schedule must exist for every number of microbatches.
void Checker::check_batch_steps() {
  const std::vector<config::BatchStep>& steps = job_.train.grad_accum_schedule;
  if (steps.empty() || !sound_) return;
  if (schedule_choice(job_.distributed.pp_schedule) != ScheduleChoice::name) {
    report_({schedule_key, "train.grad_accum_schedule"},
            fmt::format("{} has orders for one number of microbatches: train.grad_accum_schedule needs a "
                        "schedule's name, such as \"1f1b\"",
                        job_.distributed.pp_schedule));
    return;
  }
  for (size_t i = 0; i < steps.size(); ++i) {
    JobConfig later = job_;
    later.train.grad_accum_steps = steps[i].grad_accum_steps;
    const ReportConflict of_entry = [&](auto, const std::string& text) {
      report_({fmt::format("train.grad_accum_schedule[{}].grad_accum_steps", i), schedule_key}, text);
    };
    Checker(later, of_entry, /*sound=*/true).check_schedule();
  }
}

// Reads the file and compares it with the job.
void Checker::check_file() {
  config::DistributedSection& d = job_.distributed;
  const auto differs = [&](std::string_view key, int64_t given, int in_file, const char* what) {
    if (given == in_file) return;
    report_({key, schedule_key},
            fmt::format("{} = {}, but the schedule in {} has {} {}", key.substr(key.rfind('.') + 1), given,
                        d.pp_schedule, in_file, what));
  };
  try {
    given_.compute = given_schedule(job_);
    if (given_.compute->forward_only)
      report_({schedule_key},
              fmt::format("{} has forward passes alone: it cannot train", given_.compute->name));
    differs("distributed.pp", d.pp, given_.compute->ranks, "ranks");
    differs("train.grad_accum_steps", job_.train.grad_accum_steps * given_.compute->sequence_slices,
            given_.compute->microbatches, "microbatches, sequence slices counted");
    if (d.pp_stages_per_rank == 0) d.pp_stages_per_rank = given_.compute->stages_per_rank;
    differs(stages_key, d.pp_stages_per_rank, given_.compute->stages_per_rank, "stages per rank");
  } catch (const UsageError& error) {
    report_({schedule_key}, error.what());
  }
}

void Checker::check_split() {
  config::DistributedSection& d = job_.distributed;
  if (config::to_lower(d.pp_split.text) == "cost") {
    d.pp_split.text = "cost";
    return;
  }
  if (is_open(schedule_choice(d.pp_schedule))) return;
  if (job_.model.num_hidden_layers == 0 || d.pp_stages_per_rank == 0) return;  // reported already
  try {
    given_.layers = split_layers(job_, static_cast<int>(d.pp * d.pp_stages_per_rank));
  } catch (const UsageError& error) {
    report_({split_key, "distributed.pp", stages_key, "model.num_hidden_layers", "model.hf_dir"},
            fmt::format("{} (distributed.pp = {} ranks of {} stage{})", error.what(), d.pp,
                        d.pp_stages_per_rank, d.pp_stages_per_rank == 1 ? "" : "s"));
  }
}

// Its words, and how many they are if the number of stages is known.
void Checker::check_recompute() {
  const config::Recomputation& recompute = job_.train.recompute;
  try {
    recompute.check_words();
  } catch (const UsageError& error) {
    return report_({"train.recompute"}, error.what());
  }
  if (!given_.compute) return;
  try {
    recompute.check(given_.compute->stages());
  } catch (const UsageError& error) {
    report_({"train.recompute", stages_key, "distributed.pp"}, error.what());
  }
}

}  // namespace

GivenPipeline check_pipeline(JobConfig& job, const ReportConflict& report, bool sound) {
  return Checker(job, report, sound).check();
}

void check_pipeline_for_search(JobConfig& job, const ReportConflict& report) {
  Checker(job, report, /*sound=*/true).check_for_search();
}

}  // namespace pptrain::app

// The job in a run's folder: as it was given (job.toml), and as the newest start resolved it (resolved.toml).
#pragma once

#include <filesystem>
#include <optional>

#include "core/config/job_config.h"

namespace pptrain::app {

inline constexpr const char* job_name = "job.toml";
inline constexpr const char* resolved_name = "resolved.toml";
inline constexpr const char* schedule_name = "schedule.csv";  // the order that the start found

// A resolved job in a run's folder. A kept schedule is that of the folder, wherever it lies now. Throws
// UsageError where the file is damaged.
config::JobConfig read_job_file_of_run(const std::filesystem::path& file);

// The newest resolved job; of a run that began before there was a resolved.toml, its job.toml, which then is
// it. Nothing where no run has used the folder. Throws UsageError where the file is damaged.
std::optional<config::JobConfig> read_resolved_job(const std::filesystem::path& run_dir);

// What the newest start of a run chose: schedule, stages, split, place of the head, slices, recompute.
class RunChoices {
 public:
  // Nothing where the folder's job.toml is all that there is of a job. Throws UsageError.
  static std::optional<RunChoices> read(const std::filesystem::path& run_dir);

  // Puts them into a job whose layout and model are those of that start and that leaves open what its
  // job.toml does; returns whether it is one. `whole_head`: of a job that wants the head on the last stage,
  // whatever the start did, the rest counts.
  bool take(config::JobConfig& job, bool whole_head) const;

  // What job.toml leaves to train.steps; nothing where it says lr_schedule.warmup_steps itself.
  std::optional<int64_t> warmup_steps() const;

  int64_t world_size() const;

 private:
  RunChoices(config::JobConfig given, config::JobConfig resolved)
      : given_(std::move(given)), resolved_(std::move(resolved)) {}

  config::JobConfig given_, resolved_;
};

}  // namespace pptrain::app

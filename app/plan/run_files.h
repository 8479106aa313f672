// The job in a run's folder: as it was given (job.toml), and as the newest start resolved it (resolved.toml).
#pragma once

#include <filesystem>
#include <optional>
#include <string_view>

#include "core/config/job_config.h"

namespace pptrain::app {

inline constexpr const char* job_name = "job.toml";
inline constexpr const char* resolved_name = "resolved.toml";
inline constexpr const char* schedule_name = "schedule.csv";  // the order found at the start

// A resolved job in a run's folder. A kept schedule is the one in the folder, wherever that lies now. Throws
// UsageError if the file is damaged.
config::JobConfig read_job_file_of_run(const std::filesystem::path& file);

// The newest resolved job; for a run that began before resolved.toml existed, its job.toml, which was the
// resolved job. Nothing if no run has used the folder. Throws UsageError if the file is damaged.
std::optional<config::JobConfig> read_resolved_job(const std::filesystem::path& run_dir);

// What the newest start of a run chose: schedule, stages, split, place of the head, slices, recompute.
class RunChoices {
 public:
  // Nothing if the folder has no job but job.toml. Throws UsageError.
  static std::optional<RunChoices> read(const std::filesystem::path& run_dir);

  // Puts the choices into a job if its layout and model are those of that start and it leaves the same keys
  // open as the folder's job.toml; returns whether it does. The option `kept` ("": none) stays the job's,
  // whatever the start did.
  bool take(config::JobConfig& job, std::string_view kept) const;

  // The warm-up that job.toml leaves to train.steps; nothing if it gives lr_schedule.warmup_steps itself.
  std::optional<int64_t> warmup_steps() const;

  int64_t world_size() const;

 private:
  RunChoices(config::JobConfig given, config::JobConfig resolved)
      : given_(std::move(given)), resolved_(std::move(resolved)) {}

  config::JobConfig given_, resolved_;
};

}  // namespace pptrain::app

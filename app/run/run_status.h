// The state of a run, read from its folder by another process, perhaps on another host.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "app/run/fork.h"
#include "app/run/pace.h"
#include "app/run/run_lock.h"
#include "core/metrics/step_record.h"

namespace pptrain::app {

// 0 while a run has the folder; 3 if it is finished or stopped; 4 if a user should look: diverged, failed,
// dead; 1 if it is not known.
int status_exit_code(RunPhase phase);

struct RunStatus {
  RunPhase phase = RunPhase::dead;
  std::optional<LockHolder> holder;         // the run that has the folder; for a dead one, if it is known
  std::string message;                      // of a divergence or a failure
  std::optional<int64_t> steps;             // train.steps
  std::optional<metrics::StepRecord> step;  // the last
  std::optional<metrics::EvalRecord> evaluation;  // the last
  double tokens_per_s = 0;                        // over the last steps
  double step_time_s = 0;                         // their median
  std::optional<double> seconds_left;
  std::string checkpoint, best;   // names of folders: the newest, and the one with the lowest validation loss
  std::optional<int64_t> saving;  // the step that is being saved
  std::optional<Fork> fork;       // the run that this one comes from
  std::optional<PaceRecord> pace;
  // Since the last line of metrics.jsonl, by this host's clock; nothing if there is none.
  std::optional<std::chrono::system_clock::duration> age;

  bool is_alive() const { return phase == RunPhase::starting || phase == RunPhase::running; }
};

// Throws UsageError if the folder is not there or no run has ever used it, and Error if something in it
// cannot be read. Skips half-written lines and malformed files.
RunStatus read_status(const std::filesystem::path& run_dir);

// Has a run used the folder?
bool is_run_dir(const std::filesystem::path& folder);

// The runs among the folders in `folder`, by name; none if it is a run's folder itself, or is not there.
std::vector<std::filesystem::path> runs_in(const std::filesystem::path& folder);

// The runs that a path means in a command: the runs of a folder of runs, else the path itself.
std::vector<std::filesystem::path> runs_of(const std::filesystem::path& path);

// For people, one fact a line; for programs, a JSON object.
std::string status_text(const std::filesystem::path& run_dir, const RunStatus& status);
// One line, for a list of runs.
std::string status_line(const std::filesystem::path& run_dir, const RunStatus& status);
std::string status_json(const std::filesystem::path& run_dir, const RunStatus& status);

}  // namespace pptrain::app

// How a run stands, seen from outside: what its folder says. Reads only, and may look from another host.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "app/run/run_end.h"
#include "app/run/run_lock.h"
#include "core/metrics/step_record.h"

namespace pptrain::app {

enum class RunPhase {
  starting,     // a run has the folder and has not told anything yet
  running,      // a run has the folder
  finished,     // at train.steps
  stopped,      // by a signal or a request, after saving; or by a version that recorded no end
  diverged,     // stopped itself: train.divergence_steps
  failed,       // with an error, which log.txt has; or before it had begun
  dead,         // no run has the folder, and the last one did not say how it ended: it was killed
  cannot_tell,  // the file system cannot lock, and no end is told
};

std::string word_of(RunPhase phase);

// 0 while a run has the folder; 3 where it is finished or stopped; 4 where somebody should look: diverged,
// failed, dead; 1 where it cannot be told.
int status_exit_code(RunPhase phase);

struct RunStatus {
  RunPhase phase = RunPhase::dead;
  std::optional<LockHolder> holder;  // of the run that has the folder; of a dead one, where it is known
  std::string message;               // of a divergence or a failure
  std::optional<int64_t> steps;      // train.steps
  std::optional<metrics::StepRecord> step;        // the last
  std::optional<metrics::EvalRecord> evaluation;  // the last
  double tokens_per_s = 0;                        // over the last steps
  double step_time_s = 0;                         // their median
  std::optional<double> seconds_left;
  std::string checkpoint, best;   // names of folders: the newest, and that of the lowest validation loss
  std::optional<int64_t> saving;  // the step that is being saved
  // Since the last line of metrics.jsonl, by this host's clock; nothing where there is none.
  std::optional<std::chrono::system_clock::duration> age;

  bool is_alive() const { return phase == RunPhase::starting || phase == RunPhase::running; }
};

// Throws UsageError where the folder is not there or no run has ever used it, and Error where something in it
// cannot be read. Half-written lines and files that are no such are passed over.
RunStatus read_status(const std::filesystem::path& run_dir);

// Whether a folder is one of a run. Throws UsageError that says what to give.
void require_run_dir(const std::filesystem::path& run_dir);

// A line a fact, for people; an object, for programs.
std::string status_text(const std::filesystem::path& run_dir, const RunStatus& status);
std::string status_json(const std::filesystem::path& run_dir, const RunStatus& status);

}  // namespace pptrain::app

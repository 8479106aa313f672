// What a start goes on from: a pure function of the job and of what lies in run.dir.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "core/config/job_config.h"

namespace pptrain::app {

// A checkpoint, as its manifest tells.
struct SavedRun {
  std::filesystem::path folder;
  int64_t step = 0;
  int64_t next_sample = 0;
  int64_t seed = 0;
  std::optional<config::JobConfig> job;  // that saved it; none in a checkpoint that was made without one
  std::string data;                      // fingerprint of its data; empty in checkpoints that have none
  bool weights_alone = false;            // made by pptrain convert: no run has been there yet
};

// What earlier starts left in run.dir.
struct Progress {
  int64_t checkpoints = 0;         // step folders, sound or not
  std::optional<SavedRun> newest;  // the newest that may be sound
  std::string problem;             // why there is none, where there are checkpoints
};

enum class StartFrom {
  own_checkpoint,  // run.dir's newest sound one
  named,           // the path in checkpoint.resume
  nothing,         // a new model; what an earlier run left is set aside
};

struct StartChoice {
  StartFrom from = StartFrom::nothing;
  std::string remark;  // what the user is told where the choice may be another one than he expects
};

// A folder that holds checkpoints goes on from its own newest one, whatever checkpoint.resume says: a path
// and "none" count for the first start alone, so that the same command always resumes. "restart" alone starts
// over; an unfinished run of this very job, started with that word, is what it began, and goes on: so a job
// that queues itself again advances, on another layout too. Throws Error where run.dir holds checkpoints and
// none is sound.
StartChoice choose_start(const config::JobConfig& job, const Progress& progress);

}  // namespace pptrain::app

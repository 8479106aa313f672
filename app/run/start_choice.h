// What a start goes on from: a function of the job and of what lies in run.dir.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "app/run/base_weights.h"
#include "core/config/job_config.h"
#include "parallel/checkpoint/checkpoint.h"

namespace pptrain::app {

// A checkpoint, as its manifest tells.
struct SavedRun {
  std::filesystem::path folder;
  int64_t step = 0;
  int64_t next_sample = 0;
  int64_t seed = 0;
  std::optional<config::JobConfig> job;  // that saved it; none in a checkpoint that was made without one
  std::string given = {};      // the keys that were given of it, as TOML; empty in older checkpoints
  std::string data;            // fingerprint of its data; empty in checkpoints that have none
  Base base;                   // of the frozen weights
  bool weights_alone = false;  // made by pptrain convert: no run has been there yet
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

// A folder that holds checkpoints goes on from its own newest one, whatever checkpoint.resume says: a path
// and "none" count for the first start alone, so that the same command always resumes. Only "restart" starts
// over, and it acts once: an unfinished run of this very job, begun with that word, goes on, so a requeued
// job advances, on another layout too. Throws Error if run.dir holds checkpoints and none is sound. `remark`:
// for the user, "" unless the choice may surprise.
StartFrom choose_start(const config::JobConfig& job, const Progress& progress, std::string& remark);

// --- What lies in a run's folder, read.

// Called for each checkpoint that is passed over, with the reason.
using Report = std::function<void(const std::string&)>;

// Of a folder of checkpoints. `known`: those that cannot be used (checkpoint::find_resumable); those passed
// over are added.
Progress find_progress(const std::filesystem::path& checkpoints, const Report& report,
                       checkpoint::KnownProblems& known);

// The checkpoint that a user names: a step folder; a folder of them, or a run's folder: their newest sound
// one. Throws UsageError if nothing has the name, Error if there is no sound one.
std::filesystem::path find_named_checkpoint(const std::string& name, const Report& report,
                                            checkpoint::KnownProblems& known);

// What the manifest of a step folder says. Throws Error that names it if it is damaged.
SavedRun read_saved_run(const std::filesystem::path& step_folder);

// Whether a job may go on from a checkpoint that another job saved.
struct ResumeTerms {
  bool new_data = false;             // sample and seed are the job's: its data are others, or the first
  int64_t next_sample = 0;           // where the data go on
  std::vector<std::string> remarks;  // lines for the user: what differs
};

// `data`: the fingerprint of the job's data. Throws UsageError that names both values if the model or the
// optimizer differs, and if the data or their order do and checkpoint.data = "same". If both fingerprints are
// known, they count and data.path does not: a file may have moved. A step may take another number of samples:
// none is left out or comes twice, and a remark says so. Of weights alone only the model counts.
// `base`: the job's (check_base).
ResumeTerms check_resume(const SavedRun& saved, const config::JobConfig& job, const std::string& data,
                         const Base& base = {});

// What a start begins with, and on which terms.
struct Start {
  StartFrom from = StartFrom::nothing;
  std::string remark = {};  // on this choice
  ResumeTerms terms = {};
  std::string checkpoint = {};  // its folder; empty: a new model
};

// All of the above for run.dir of a job whose data and frozen weights are these. Touches nothing. Throws what
// these throw: UsageError where the job may not go on there.
Start find_start(const config::JobConfig& job, const std::string& data, const Base& base,
                 const Report& report, checkpoint::KnownProblems& known);

// What makes the model of one job another one than the other job's, in words: tensors of equal shapes may be
// of a model that computes something else.
std::vector<std::string> model_differences(const config::JobConfig& saved, const config::JobConfig& job);

}  // namespace pptrain::app

// What a start goes on from: a function of the job and of the contents of run.dir.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "app/launch/memory_folder.h"
#include "app/run/base_weights.h"
#include "core/config/job_config.h"
#include "parallel/checkpoint/checkpoint.h"

namespace pptrain::app {

// A checkpoint, as in its manifest.
struct SavedRun {
  std::filesystem::path folder;
  int64_t step = 0;
  int64_t next_sample = 0;
  int64_t seed = 0;
  std::optional<config::JobConfig> job;  // the job that saved it; none in a checkpoint made without one
  std::string given = {};                // its keys that were given, as TOML; empty in older checkpoints
  std::string data;                      // fingerprint of its data; empty if the checkpoint has none
  Base base;                             // of the frozen weights
  std::string machine = {};              // as machine() gives it; empty in older checkpoints
  bool weights_alone = false;            // made by pptrain convert: no run has been there yet
};

// What a checkpoint's layout says of the processor or GPU that computed it, on which bits depend
// (docs/what_is_exact.md): the instruction set of this process's CPU kernels, or the GPU's name.
inline constexpr const char* machine_name = "machine";
std::string machine(config::Device device);

// What earlier starts left in run.dir.
struct SavedProgress {
  int64_t checkpoints = 0;         // step folders, sound or not
  std::optional<SavedRun> newest;  // the newest that may be sound
  std::string problem;             // why there is none, if there are checkpoints
};

enum class StartFrom {
  own_checkpoint,  // run.dir's newest sound one
  named,           // the path in checkpoint.resume
  nothing,         // a new model; what an earlier run left is set aside
};

// A folder that holds checkpoints goes on from its own newest one, whatever checkpoint.resume says: a path
// and "none" count only for the first start, so that the same command always resumes. Only "restart" starts
// over, and it acts once: an unfinished run of this very job, begun with that word, goes on, so a requeued
// job advances, on another layout too. Throws Error if run.dir holds checkpoints and none is sound. `remark`:
// for the user, "" unless the choice may surprise.
StartFrom choose_start(const config::JobConfig& job, const SavedProgress& progress, std::string& remark);

// --- Reading a run's folder.

// Called for each checkpoint that is skipped, with the reason.
using Report = std::function<void(const std::string&)>;

// Reads a folder of checkpoints. `known`: those that cannot be used (checkpoint::find_resumable); skipped
// ones are added.
SavedProgress find_progress(const std::filesystem::path& checkpoints, const Report& report,
                            checkpoint::KnownProblems& known);

// The checkpoint that a user names: a step folder, or the newest sound one of a folder of them or of a run's
// folder. Throws UsageError if nothing has the name, Error if there is no sound one.
std::filesystem::path find_named_checkpoint(const std::string& name, const Report& report,
                                            checkpoint::KnownProblems& known);

// Reads the manifest of a step folder. Throws Error that names it if it is damaged.
SavedRun read_saved_run(const std::filesystem::path& step_folder);

// Whether a job may go on from a checkpoint that another job saved.
struct ResumeTerms {
  bool new_data = false;             // sample and seed are the job's: its data are different, or the first
  int64_t next_sample = 0;           // the first sample to read
  std::vector<std::string> remarks;  // lines for the user: what differs
};

// `data`: the fingerprint of the job's data. Throws UsageError that names both values if the model or the
// optimizer differs. With checkpoint.data = "same" also if the data or their order differ. If both
// fingerprints are known, they decide and data.path does not: a file may have moved. A step may take another
// number of samples: none is left out or comes twice, and a remark says so. If the checkpoint has only
// weights, only the model is compared. `base`: the job's (check_base).
ResumeTerms check_resume(const SavedRun& saved, const config::JobConfig& job, const std::string& data,
                         const Base& base = {});

// The beginning of a start, and its terms.
struct Start {
  StartFrom from = StartFrom::nothing;
  std::string remark = {};  // about this choice
  ResumeTerms terms = {};
  std::string checkpoint = {};  // its folder; empty: a new model
};

// All of the above for the run.dir of a job with these data and frozen weights, and this host's copies of the
// run's states. Touches nothing. Throws what they throw: UsageError if the job may not go on there.
Start find_start(const config::JobConfig& job, const std::string& data, const Base& base,
                 const MemoryFolder& memory, const Report& report, checkpoint::KnownProblems& known);

// Why the models of two jobs differ, in words: tensors of equal shapes may belong to models that compute
// something else.
std::vector<std::string> model_differences(const config::JobConfig& saved, const config::JobConfig& job);

}  // namespace pptrain::app

// The run's folder: what a new or a resumed run finds there and makes of it.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "core/config/job_config.h"
#include "parallel/checkpoint/checkpoint.h"

namespace pptrain::app {

// The checkpoint that checkpoint.resume asks for: the newest sound one (auto), the named step folder or the
// newest under a named checkpoints folder (PATH), or none. Prints what it passed over. Throws Error where
// PATH holds none. `known`: those that cannot be used (checkpoint::find_resumable).
std::optional<std::filesystem::path> choose_checkpoint(const config::JobConfig& job,
                                                       checkpoint::KnownProblems& known);

// The step folder that checkpoint.resume names, or that was found under the folder that it names: it stays
// whatever keep_last_n says. "" where it names none.
std::filesystem::path named_checkpoint(const config::JobConfig& job, const std::string& resumed_from);

// Moves checkpoints of steps after `step` from an earlier run out of the way, to checkpoints.1, .2, ...:
// nothing is deleted, and the run to come can never be mistaken for them. Prints what it moved.
void set_aside_later_checkpoints(const std::filesystem::path& checkpoint_root, int64_t step);

// Creates the folder and writes the resolved job to job.toml. Throws Error that names what cannot be written.
void prepare_run_dir(const config::JobConfig& job);

}  // namespace pptrain::app

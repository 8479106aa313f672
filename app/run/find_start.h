// What lies in a run's folder, read.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "app/run/start_choice.h"
#include "parallel/checkpoint/checkpoint.h"

namespace pptrain::app {

// Hears of each checkpoint that is passed over, and why.
using Report = std::function<void(const std::string&)>;

// Of a folder of checkpoints. `known`: those that cannot be used (checkpoint::find_resumable), which takes up
// what is passed over.
Progress find_progress(const std::filesystem::path& checkpoints, const Report& report,
                       checkpoint::KnownProblems& known);

// The checkpoint that a user names: a step folder; a folder of them, or a run's folder: their newest sound
// one. Throws UsageError where there is nothing of the name, Error where there is no sound one.
std::filesystem::path find_named_checkpoint(const std::string& name, const Report& report,
                                            checkpoint::KnownProblems& known);

// What the manifest of a step folder says. Throws Error that names it where it is damaged.
SavedRun read_saved_run(const std::filesystem::path& step_folder);

}  // namespace pptrain::app

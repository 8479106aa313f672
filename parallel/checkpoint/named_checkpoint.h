// The checkpoint that a user names.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "parallel/checkpoint/checkpoint.h"

namespace pptrain::checkpoint {

// Whether `path` is one checkpoint (by its name, step_N, or by its manifest), sound or not.
bool is_step_folder(const std::filesystem::path& path);

// `path` itself where it is a step folder; where it is a folder of them, or a run's folder (with checkpoints/
// in it), their newest sound one; nothing where it holds none. `report` hears of each checkpoint that is
// passed over, `known` is as in find_resumable. Throws Error where checkpoints are there and none can be
// used, or where `known` says that the named one cannot.
std::optional<std::filesystem::path> find_named(const std::filesystem::path& path,
                                                const std::function<void(const std::string&)>& report,
                                                KnownProblems& known);

}  // namespace pptrain::checkpoint

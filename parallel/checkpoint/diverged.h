// Checkpoints of a run that diverged, out of the way of those to come.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <vector>

#include "parallel/checkpoint/retention.h"

namespace pptrain::checkpoint {

// Renames the checkpoints under `root` of step `first` and later, step_N to diverged_step_N (or
// diverged_step_N.1, ... where that is taken), so that no start goes on from them by itself. `latest` and
// `best` then name what is left, by `scored`. Returns the newest that is left; nothing where none is. Throws
// Error that names what cannot be moved.
std::optional<std::filesystem::path> set_aside_diverged(const std::filesystem::path& root, int64_t first,
                                                        std::span<const ScoredStep> scored);

// The validation losses that the checkpoints under `root` carry. One whose manifest cannot be read has none.
std::vector<ScoredStep> read_scores(const std::filesystem::path& root);

}  // namespace pptrain::checkpoint

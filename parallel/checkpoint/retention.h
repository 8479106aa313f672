// Which checkpoints of a run stay: the newest, and those with the lowest validation losses. Pure functions.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <vector>

namespace pptrain::checkpoint {

// By a checkpoint's step: the validation loss of the evaluation after that very step, in nats per token.
using Scores = std::map<int64_t, double>;

// The `n` of the lowest losses, the lowest first; of equal ones the earlier step comes first. Losses that are
// no numbers count for nothing.
std::vector<int64_t> best_steps(const Scores& scores, int64_t n);

// Whether `step` would be among the best `n` with this loss, beside the others.
bool is_among_best(Scores scores, int64_t step, double loss, int64_t n);

// Of the steps that are there, those that stay after `saved` was: that one, the newest others up to
// keep_last_n with it (0: all), and the best keep_best_n of those that are there.
std::set<int64_t> kept_steps(std::span<const int64_t> there, int64_t saved, int64_t keep_last_n,
                             int64_t keep_best_n, Scores scores);

// --- Checkpoints of a run that diverged, out of the way of those to come.

// Renames the checkpoints under `root` of step `first` and later, step_N to diverged_step_N (or
// diverged_step_N.1, ... where that is taken), so that no start goes on from them by itself. `latest` and
// `best` then name what is left, by `scores`. Returns the newest that is left; nothing where none is. Throws
// Error that names what cannot be moved.
std::optional<std::filesystem::path> set_aside_diverged(const std::filesystem::path& root, int64_t first,
                                                        Scores scores);

// The validation losses that the checkpoints under `root` carry. One whose manifest cannot be read has none.
Scores read_scores(const std::filesystem::path& root);

}  // namespace pptrain::checkpoint

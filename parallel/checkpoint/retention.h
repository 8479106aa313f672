// Decides which checkpoints of a run stay: the newest, and those with the lowest validation losses.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <vector>

namespace pptrain::checkpoint {

// Step of a checkpoint -> validation loss of the evaluation after that very step, in nats per token.
using Scores = std::map<int64_t, double>;

// The `n` steps with the lowest losses, the lowest first; of equal ones the earlier step comes first. NaN
// losses do not count.
std::vector<int64_t> best_steps(const Scores& scores, int64_t n);

// Whether `step` would be among the best `n` with this loss, compared with the others.
bool is_among_best(Scores scores, int64_t step, double loss, int64_t n);

// Of the existing steps, those that stay after `saved` was saved: `saved` itself and the newest others, up to
// keep_last_n together (0: all), and the best keep_best_n.
std::set<int64_t> kept_steps(std::span<const int64_t> there, int64_t saved, int64_t keep_last_n,
                             int64_t keep_best_n, Scores scores);

// Lets `latest` name the newest checkpoint under `root`, as a start does whose run was killed after it saved
// a checkpoint and before it named it. Without a checkpoint there is no `latest`.
void name_latest(const std::filesystem::path& root);

// --- Moves the checkpoints of a run that diverged out of the way of later ones.

// Renames the checkpoints under `root` of step `first` and later, step_N to diverged_step_N (or
// diverged_step_N.1, ... if that name is taken), so that no start resumes from them by itself. `latest` and
// `best` then name the remaining ones, by `scores`. Returns the newest remaining one; nothing if there is
// none. Throws Error that names what cannot be moved.
std::optional<std::filesystem::path> set_aside_diverged(const std::filesystem::path& root, int64_t first,
                                                        Scores scores);

// The validation losses in the checkpoints under `root`. One whose manifest cannot be read has none.
Scores read_scores(const std::filesystem::path& root);

}  // namespace pptrain::checkpoint

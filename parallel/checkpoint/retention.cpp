#include "parallel/checkpoint/retention.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <system_error>
#include <tuple>
#include <vector>

#include "core/base/error.h"
#include "core/io/atomic_file.h"
#include "core/io/files.h"
#include "core/io/paths.h"
#include "parallel/checkpoint/manifest.h"
#include "parallel/checkpoint/step_folders.h"

namespace pptrain::checkpoint {

std::vector<int64_t> best_steps(std::span<const ScoredStep> scored, int64_t n) {
  std::vector<ScoredStep> sorted(scored.begin(), scored.end());
  std::erase_if(sorted, [](const ScoredStep& s) { return std::isnan(s.loss); });
  std::ranges::sort(sorted, {}, [](const ScoredStep& s) { return std::tuple(s.loss, s.step); });
  std::vector<int64_t> steps;
  for (const ScoredStep& s : sorted) {
    if (static_cast<int64_t>(steps.size()) >= n) break;
    steps.push_back(s.step);
  }
  return steps;
}

bool is_among_best(std::span<const ScoredStep> scored, const ScoredStep& candidate, int64_t n) {
  std::vector<ScoredStep> all(scored.begin(), scored.end());
  std::erase_if(all, [&](const ScoredStep& s) { return s.step == candidate.step; });
  all.push_back(candidate);
  return std::ranges::count(best_steps(all, n), candidate.step) > 0;
}

std::set<int64_t> kept_steps(std::span<const int64_t> there, int64_t saved, int64_t keep_last_n,
                             int64_t keep_best_n, std::span<const ScoredStep> scored) {
  if (keep_last_n <= 0) return {there.begin(), there.end()};
  std::set<int64_t> kept;
  std::vector<int64_t> newest(there.begin(), there.end());
  std::ranges::sort(newest, std::greater{});
  int64_t count = 1;  // the one just saved, whatever lies beside it
  for (const int64_t step : newest) {
    if (step == saved || count++ < keep_last_n) kept.insert(step);
  }
  std::vector<ScoredStep> present(scored.begin(), scored.end());
  std::erase_if(present,
                [&](const ScoredStep& s) { return std::ranges::find(there, s.step) == there.end(); });
  for (const int64_t step : best_steps(present, keep_best_n)) kept.insert(step);
  return kept;
}

namespace fs = std::filesystem;

namespace {

void set_aside(int64_t step, const fs::path& folder) {
  fs::path to = folder.parent_path() / diverged_folder_name(step);
  if (io::is_there(to)) to = io::first_free(to);
  std::error_code error;
  fs::rename(folder, to, error);
  if (error) throw io::file_error("cannot move a checkpoint of a run that diverged,", folder, error.value());
}

// A name for people: without a step there is no such file.
void write_name(const fs::path& file, std::optional<int64_t> step) {
  if (step) {
    io::write_file_atomically(file, step_folder_name(*step) + "\n");
  } else {
    std::error_code ignored;
    fs::remove(file, ignored);
  }
}

}  // namespace

std::optional<fs::path> set_aside_diverged(const fs::path& root, int64_t first,
                                           std::span<const ScoredStep> scored) {
  for (const auto& [step, folder] : list_step_folders(root)) {
    if (step >= first) set_aside(step, folder);
  }
  io::sync_folder(root);
  const StepFolders left = list_step_folders(root);
  std::vector<ScoredStep> scores(scored.begin(), scored.end());
  std::erase_if(scores, [&](const ScoredStep& s) { return !left.contains(s.step); });
  const std::vector<int64_t> best = best_steps(scores, 1);
  write_name(root / latest_name, left.empty() ? std::nullopt : std::optional(left.begin()->first));
  if (io::is_there(root / best_name))
    write_name(root / best_name, best.empty() ? std::nullopt : std::optional(best.front()));
  return left.empty() ? std::nullopt : std::optional(left.begin()->second);
}

std::vector<ScoredStep> read_scores(const fs::path& root) {
  std::vector<ScoredStep> scores;
  for (const auto& [step, folder] : list_step_folders(root)) {
    try {
      const RunState state = read_manifest(folder).state;
      if (state.validation_loss) scores.push_back({.step = step, .loss = *state.validation_loss});
    } catch (const Error&) {
      // Resuming from it reports what is wrong with it.
    }
  }
  return scores;
}

}  // namespace pptrain::checkpoint

#include "parallel/checkpoint/retention.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <system_error>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/io/atomic_file.h"
#include "core/io/files.h"
#include "core/io/paths.h"
#include "parallel/checkpoint/manifest.h"
#include "parallel/checkpoint/step_folders.h"

namespace pptrain::checkpoint {

std::vector<int64_t> best_steps(const Scores& scores, int64_t n) {
  std::vector<std::pair<double, int64_t>> sorted;
  for (const auto& [step, loss] : scores) {
    if (!std::isnan(loss)) sorted.emplace_back(loss, step);
  }
  std::ranges::sort(sorted);
  std::vector<int64_t> steps;
  for (const auto& [loss, step] : sorted) {
    if (static_cast<int64_t>(steps.size()) < n) steps.push_back(step);
  }
  return steps;
}

bool is_among_best(Scores scores, int64_t step, double loss, int64_t n) {
  scores[step] = loss;
  return std::ranges::count(best_steps(scores, n), step) > 0;
}

std::set<int64_t> kept_steps(std::span<const int64_t> there, int64_t saved, int64_t keep_last_n,
                             int64_t keep_best_n, Scores scores) {
  if (keep_last_n <= 0) return {there.begin(), there.end()};
  std::set<int64_t> kept;
  std::vector<int64_t> newest(there.begin(), there.end());
  std::ranges::sort(newest, std::greater{});
  int64_t count = 1;  // the one just saved, whatever else is there
  for (const int64_t step : newest) {
    if (step == saved || count++ < keep_last_n) kept.insert(step);
  }
  std::erase_if(scores, [&](const auto& s) { return std::ranges::find(there, s.first) == there.end(); });
  for (const int64_t step : best_steps(scores, keep_best_n)) kept.insert(step);
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

// A name for users; without a step the file is removed.
void write_name(const fs::path& file, std::optional<int64_t> step) {
  if (step) {
    io::write_file_atomically(file, step_folder_name(*step) + "\n");
  } else {
    std::error_code ignored;
    fs::remove(file, ignored);
  }
}

}  // namespace

void name_latest(const fs::path& root) {
  const StepFolders there = list_step_folders(root);
  write_name(root / latest_name, there.empty() ? std::nullopt : std::optional(there.begin()->first));
}

std::optional<fs::path> set_aside_diverged(const fs::path& root, int64_t first, Scores scores) {
  for (const auto& [step, folder] : list_step_folders(root)) {
    if (step >= first) set_aside(step, folder);
  }
  io::sync_folder(root);
  const StepFolders left = list_step_folders(root);
  std::erase_if(scores, [&](const auto& s) { return !left.contains(s.first); });
  const std::vector<int64_t> best = best_steps(scores, 1);
  name_latest(root);
  if (io::is_there(root / best_name))
    write_name(root / best_name, best.empty() ? std::nullopt : std::optional(best.front()));
  return left.empty() ? std::nullopt : std::optional(left.begin()->second);
}

Scores read_scores(const fs::path& root) {
  Scores scores;
  for (const auto& [step, folder] : list_step_folders(root)) {
    try {
      const RunState state = read_manifest(folder).state;
      if (state.validation_loss) scores[step] = *state.validation_loss;
    } catch (const Error&) {
      // Resuming from it reports what is wrong with it.
    }
  }
  return scores;
}

}  // namespace pptrain::checkpoint

#include "parallel/checkpoint/diverged.h"

#include <algorithm>
#include <system_error>
#include <vector>

#include "core/base/error.h"
#include "core/io/atomic_file.h"
#include "core/io/file_descriptor.h"
#include "core/io/is_there.h"
#include "core/io/numbered_path.h"
#include "parallel/checkpoint/manifest.h"
#include "parallel/checkpoint/step_folders.h"

namespace pptrain::checkpoint {

namespace fs = std::filesystem;

namespace {

void set_aside(const StepFolder& folder) {
  fs::path to = folder.path.parent_path() / diverged_folder_name(folder.step);
  if (io::is_there(to)) to = io::first_free(to);
  std::error_code error;
  fs::rename(folder.path, to, error);
  if (error)
    throw io::file_error("cannot move a checkpoint of a run that diverged,", folder.path, error.value());
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
  for (const StepFolder& folder : list_step_folders(root)) {
    if (folder.step >= first) set_aside(folder);
  }
  io::sync_folder(root);
  const std::vector<StepFolder> left = list_step_folders(root);
  std::vector<ScoredStep> scores(scored.begin(), scored.end());
  std::erase_if(
      scores, [&](const ScoredStep& s) { return std::ranges::count(left, s.step, &StepFolder::step) == 0; });
  const std::vector<int64_t> best = best_steps(scores, 1);
  write_name(root / latest_name, left.empty() ? std::nullopt : std::optional(left.front().step));
  if (io::is_there(root / best_name))
    write_name(root / best_name, best.empty() ? std::nullopt : std::optional(best.front()));
  return left.empty() ? std::nullopt : std::optional(left.front().path);
}

std::vector<ScoredStep> read_scores(const fs::path& root) {
  std::vector<ScoredStep> scores;
  for (const StepFolder& folder : list_step_folders(root)) {
    try {
      const RunState state = read_manifest(folder.path).state;
      if (state.validation_loss) scores.push_back({.step = folder.step, .loss = *state.validation_loss});
    } catch (const Error&) {
      // Who wants to go on from it hears what is wrong with it.
    }
  }
  return scores;
}

}  // namespace pptrain::checkpoint

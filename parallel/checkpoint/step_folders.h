// The names in a folder of checkpoints: they are made and read only here.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "parallel/checkpoint/checkpoint.h"
#include "parallel/comm/communicator.h"

namespace pptrain::checkpoint {

inline constexpr const char* temporary_prefix = ".tmp_";
inline constexpr const char* latest_name = "latest";
inline constexpr const char* best_name = "best";  // the checkpoint with the lowest validation loss

// "step_17".
std::string step_folder_name(int64_t step);
// The step in a name that step_folder_name gives; nothing for others, "step_007" and "step_best" among them.
std::optional<int64_t> parse_step_folder(const std::string& name);

// "diverged_step_17": the last state of a run that diverged. No run resumes from it by itself.
std::string diverged_folder_name(int64_t step);

// The name of a step's folder that a file such as `latest` holds; "" if it holds none.
std::string name_in(const std::filesystem::path& file);

// Folders by their steps, the highest first.
using StepFolders = std::map<int64_t, std::filesystem::path, std::greater<>>;

// The step folders under `root`, sound or not. Empty if `root` is no folder. Throws Error if it is a folder
// that cannot be read.
StepFolders list_step_folders(const std::filesystem::path& root);

// Removes what killed saves have left below `root`, as far as that is possible.
void remove_temporaries(const std::filesystem::path& root);

// A run may have been killed as it replaced a step's folder on a file system that cannot exchange two names.
// The old folder then lies next to its place (io::rename_folder_synced): it gets its name back, if no folder
// has it. Reports what it did and what it could not do. Only for the one process that writes below `root`.
void take_back_replaced(const std::filesystem::path& root,
                        const std::function<void(const std::string&)>& report);

// --- The checkpoint that a user names.

// Whether `path` is one checkpoint (by its name, step_N, or by its manifest), sound or not.
bool is_step_folder(const std::filesystem::path& path);

// `path` itself if it is a step folder. If it is a folder of them, or a run's folder (with checkpoints/ in
// it), their newest sound one; nothing if it holds none. `report` is called for each checkpoint that is
// passed over; `known` is as in find_resumable. Throws Error if there are checkpoints and none can be used,
// or if `known` says that the named one cannot.
std::optional<std::filesystem::path> find_named(const std::filesystem::path& path,
                                                const std::function<void(const std::string&)>& report,
                                                KnownProblems& known);

// --- Which rank has failed.

// Runs `action` on every rank. Returns the lowest rank on which it throws Caught, and the exception's text,
// the same on all ranks; -1 and "" if none does. Collective.
template <typename Caught, typename Action>
std::pair<int, std::string> first_problem(comm::Communicator& comm, const Action& action) {
  std::string problem;
  std::vector<double> failed(static_cast<size_t>(comm.size()), 0);
  try {
    action();
  } catch (const Caught& error) {
    problem = error.what();
    failed[static_cast<size_t>(comm.rank())] = 1;
  }
  if (!comm::any(comm, failed[static_cast<size_t>(comm.rank())] != 0)) return {-1, ""};
  failed = comm::all_reduce_sum(comm, failed);
  const auto first = static_cast<int>(std::ranges::find(failed, 1.0) - failed.begin());
  return {first, comm::broadcast_string(comm, problem, first)};
}

}  // namespace pptrain::checkpoint

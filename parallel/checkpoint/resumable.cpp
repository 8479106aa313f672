// Which checkpoint a run goes on from.
#include <spdlog/fmt/fmt.h>

#include "core/base/error.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/checkpoint/step_folders.h"

namespace pptrain::checkpoint {
namespace {

namespace fs = std::filesystem;

// "" where the checkpoint may be sound.
std::string problem_of(const fs::path& step_dir) {
  try {
    const Reader reader(step_dir);
  } catch (const Unusable& error) {
    return error.what();
  }
  return "";
}

// The problem of the first rank on which `action` throws Unusable, the same text on all; "" where none does.
template <typename Action>
std::string problem_on_any_rank(comm::Communicator& comm, const Action& action) {
  std::string problem;
  try {
    action();
  } catch (const Unusable& error) {
    problem = error.what();
  }
  const int failing = first_rank(comm, !problem.empty());
  if (failing < 0) return "";
  problem = comm::broadcast_string(comm, problem, failing);
  return comm.size() == 1 ? problem : fmt::format("rank {}: {}", failing, problem);
}

}  // namespace

std::optional<fs::path> find_resumable(const fs::path& root,
                                       const std::function<void(const std::string&)>& report,
                                       KnownProblems& known) {
  const std::vector<StepFolder> folders = list_step_folders(root);
  std::string all;
  for (const StepFolder& folder : folders) {
    if (!known.contains(folder.path)) {
      const std::string problem = problem_of(folder.path);
      if (problem.empty()) return folder.path;
      report(fmt::format("the checkpoint '{}' is passed over: {}", folder.path.string(), problem));
      known[folder.path] = problem;
    }
    all += fmt::format("\n  {}: {}", folder.path.filename().string(), known[folder.path]);
  }
  if (folders.empty()) return std::nullopt;
  throw Error(
      fmt::format("none of the checkpoints in '{}' can be used, and nothing is begun anew over "
                  "them:{}\nWhere the disk or the rights are at fault, set them right and start again.",
                  root.string(), all));
}

std::optional<fs::path> find_resumable(const fs::path& root,
                                       const std::function<void(const std::string&)>& report) {
  KnownProblems known;
  return find_resumable(root, report, known);
}

std::string load_on_all(comm::Communicator& comm, const fs::path& step_dir,
                        const std::function<void(const Reader&)>& load) {
  std::optional<Reader> reader;
  const std::string problem = problem_on_any_rank(comm, [&] { reader.emplace(step_dir); });
  if (!problem.empty()) return problem;
  return problem_on_any_rank(comm, [&] { load(*reader); });
}

}  // namespace pptrain::checkpoint

#include "app/run/find_start.h"

#include <spdlog/fmt/fmt.h>

#include "core/base/error.h"
#include "core/config/differences.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/checkpoint/manifest.h"
#include "parallel/checkpoint/named_checkpoint.h"
#include "parallel/checkpoint/step_folders.h"

namespace pptrain::app {

namespace fs = std::filesystem;

Progress find_progress(const fs::path& checkpoints, const Report& report, checkpoint::KnownProblems& known) {
  Progress progress{.checkpoints = static_cast<int64_t>(checkpoint::list_step_folders(checkpoints).size()),
                    .newest = {},
                    .problem = {}};
  std::optional<fs::path> newest;
  try {
    newest = checkpoint::find_resumable(checkpoints, report, known);
  } catch (const Error& error) {
    progress.problem = error.what();
  }
  if (newest) progress.newest = read_saved_run(*newest);
  return progress;
}

fs::path find_named_checkpoint(const std::string& name, const Report& report,
                               checkpoint::KnownProblems& known) {
  const fs::path path = name;
  if (!fs::exists(path)) {
    throw UsageError(fmt::format(
        "checkpoint.resume: \"{}\" does not exist; expected auto, none, restart, or the path of a checkpoint",
        name));
  }
  if (const auto found = checkpoint::find_named(path, report, known)) return *found;
  throw Error(fmt::format("checkpoint.resume: no complete checkpoint in {}", name));
}

SavedRun read_saved_run(const fs::path& step_folder) {
  const checkpoint::Manifest manifest = checkpoint::read_manifest(step_folder);
  SavedRun saved{.folder = step_folder,
                 .step = manifest.state.step,
                 .next_sample = manifest.state.next_sample,
                 .seed = static_cast<int64_t>(manifest.state.seed),
                 .job = {},
                 .data = {},
                 .weights_alone = manifest.weights_alone()};
  if (!manifest.job_toml.empty()) {
    const std::string name = fmt::format("the job in {}", (step_folder / checkpoint::manifest_name).string());
    saved.job = config::read_saved_job(manifest.job_toml, name);
  }
  const auto data = manifest.layout.find("data");
  if (data != manifest.layout.end()) saved.data = data->second;
  return saved;
}

}  // namespace pptrain::app

#include "app/train/run_dir.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>

#include <system_error>
#include <vector>

#include "core/base/error.h"
#include "core/config/loader.h"
#include "core/io/atomic_file.h"
#include "parallel/checkpoint/step_folders.h"

namespace pptrain::app {

namespace fs = std::filesystem;

namespace {

fs::path first_free(const fs::path& base) {
  for (int i = 1;; ++i) {
    fs::path candidate = fmt::format("{}.{}", base.string(), i);
    if (!fs::exists(candidate)) return candidate;
  }
}

}  // namespace

std::optional<fs::path> choose_checkpoint(const config::JobConfig& job, checkpoint::KnownProblems& known) {
  const std::string& resume = job.checkpoint.resume;
  if (resume == "none") return std::nullopt;
  const auto report = [](const std::string& text) { spdlog::warn("{}", text); };
  if (resume == "auto")
    return checkpoint::find_resumable(fs::path(job.run.dir) / "checkpoints", report, known);
  const bool step_folder = checkpoint::parse_step_folder(fs::path(resume).filename().string()).has_value();
  if (step_folder || fs::exists(fs::path(resume) / "manifest.json")) return fs::path(resume);
  if (auto found = checkpoint::find_resumable(resume, report, known)) return found;
  if (auto found = checkpoint::find_resumable(fs::path(resume) / "checkpoints", report, known)) return found;
  throw Error(fmt::format("checkpoint.resume: no complete checkpoint in {}", resume));
}

fs::path named_checkpoint(const config::JobConfig& job, const std::string& resumed_from) {
  const std::string& resume = job.checkpoint.resume;
  if (resume == "none" || resume == "auto") return {};
  return checkpoint::parse_step_folder(fs::path(resume).filename().string()) ? resume : resumed_from;
}

void set_aside_later_checkpoints(const fs::path& checkpoint_root, int64_t step) {
  std::vector<checkpoint::StepFolder> later = checkpoint::list_step_folders(checkpoint_root);
  std::erase_if(later, [&](const checkpoint::StepFolder& folder) { return folder.step <= step; });
  if (later.empty()) return;
  const fs::path aside = first_free(checkpoint_root);
  std::error_code error;
  fs::create_directory(aside, error);
  for (const checkpoint::StepFolder& folder : later) {
    if (!error) fs::rename(folder.path, aside / folder.path.filename(), error);
  }
  if (error) {
    throw Error(fmt::format("cannot move earlier checkpoints from {} to {}: {}", checkpoint_root.string(),
                            aside.string(), error.message()));
  }
  spdlog::info("an earlier run left {} checkpoint{} after step {}: moved to {}", later.size(),
               later.size() == 1 ? "" : "s", step, aside.string());
}

void prepare_run_dir(const config::JobConfig& job) {
  const fs::path dir = job.run.dir;
  std::error_code error;
  fs::create_directories(dir / "checkpoints", error);
  if (error) throw Error(fmt::format("run.dir: cannot create {}: {}", dir.string(), error.message()));
  io::write_file_atomically(dir / "job.toml", config::to_toml(job));
}

}  // namespace pptrain::app

#include "app/rank/weights_source.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <filesystem>

#include "app/rank/checkpoint_contents.h"
#include "app/run/start_choice.h"
#include "core/base/error.h"
#include "core/config/document.h"
#include "core/config/field.h"
#include "core/io/paths.h"
#include "models/learning.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/checkpoint/manifest.h"
#include "parallel/checkpoint/step_folders.h"
#include "parallel/comm/agreement.h"

namespace pptrain::app {

namespace fs = std::filesystem;

namespace {

// About a checkpoint that is skipped.
void warn(const std::string& text) {
  spdlog::warn("{}", text);
}

// "" for the weights of model.hf_dir.
std::string find_checkpoint(const config::JobConfig& job, const std::string& named) {
  if (is_hf_directory(named)) return "";
  if (!named.empty()) return named_checkpoint("--checkpoint", named).string();
  if (const auto found = checkpoint::find_resumable(fs::path(job.run.dir) / "checkpoints", warn))
    return found->string();
  if (job.model.init == config::Init::hf) return "";
  throw UsageError(
      fmt::format("there is no checkpoint in {}: name one with --checkpoint DIR, which may also be a Hugging "
                  "Face directory",
                  job.run.dir));
}

void refuse_other_model(const fs::path& folder, const config::JobConfig& job) {
  const SavedRun saved = read_saved_run(folder);
  check_base(folder.string(), saved.base, base_of(job));
  if (!saved.job) return;
  const std::vector<std::string> other = model_differences(*saved.job, job);
  if (other.empty()) return;
  throw UsageError(
      fmt::format("{} is of another model: {}. Use the job that it was trained by, or set what it was.",
                  folder.string(), fmt::join(other, "; ")));
}

}  // namespace

bool is_hf_directory(const std::string& dir) {
  return !dir.empty() && io::is_there(fs::path(dir) / "config.json") &&
         !io::is_there(fs::path(dir) / checkpoint::manifest_name);
}

fs::path named_checkpoint(std::string_view option, const std::string& path) {
  if (!io::is_there(path)) throw UsageError(fmt::format("{}: there is no \"{}\"", option, path));
  checkpoint::KnownProblems known;
  if (const auto found = checkpoint::find_named(path, warn, known)) return *found;
  throw UsageError(
      fmt::format("{}: \"{}\" holds no checkpoint (a manifest.json, or folders step_N with one) and no "
                  "Hugging Face model (a config.json)",
                  option, path));
}

std::vector<std::string> hf_overrides(const std::string& checkpoint) {
  if (!is_hf_directory(checkpoint)) return {};
  return {config::by_command("model.hf_dir=" + config::toml_string(checkpoint)),
          config::by_command("model.init=\"hf\"")};
}

std::string load_weights(RunContext& context, RankModel& model, const std::string& checkpoint) {
  const auto disk = checkpoint::disk_communicator(context.mesh.world());
  std::string found;
  const std::string fault = comm::fault_of([&] {
    if (!context.root()) return;
    found = find_checkpoint(context.job, checkpoint);
    if (!found.empty()) refuse_other_model(found, context.job);
  });
  const std::string told = comm::broadcast_string(*disk, fault, 0);
  if (!told.empty()) throw CommonFault(told);
  found = comm::broadcast_string(*disk, found, 0);
  const auto tell = [&](std::string what) {
    if (context.root()) spdlog::info("{}; {}", what, context.mesh.shape().describe());
    return what;
  };
  if (found.empty()) {
    model.initialise();
    return tell(fmt::format("the weights of {}", context.job.model.hf_dir));
  }
  if (models::freezes(context.model)) model.initialise();
  int64_t step = 0;
  const std::string problem = checkpoint::load_on_all(*disk, found, [&](const checkpoint::Reader& reader) {
    step = reader.state().step;
    read_weights(context, model.stages(), reader);
  });
  if (!problem.empty()) throw Error(fmt::format("{}: {}", found, problem));
  return tell(fmt::format("{} (step {})", found, step));
}

}  // namespace pptrain::app

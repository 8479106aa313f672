#include "app/run/fork.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <vector>

#include "app/plan/run_files.h"
#include "app/run/rollbacks.h"
#include "app/run/run_lock.h"
#include "app/run/start_choice.h"
#include "core/base/error.h"
#include "core/base/process.h"
#include "core/base/text.h"
#include "core/config/document.h"
#include "core/config/field.h"
#include "core/config/loader.h"
#include "core/io/atomic_file.h"
#include "core/io/files.h"
#include "core/io/paths.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/checkpoint/manifest.h"
#include "parallel/checkpoint/step_folders.h"

namespace pptrain::app {

namespace fs = std::filesystem;
using Json = nlohmann::json;

namespace {

constexpr size_t longest_fork = 1 << 16;  // bytes of fork.json

fs::path find_step(const fs::path& run, std::optional<int64_t> step) {
  const fs::path root = run / "checkpoints";
  const checkpoint::StepFolders folders = checkpoint::list_step_folders(root);
  if (folders.empty()) throw UsageError(fmt::format("fork: {} holds no checkpoint", root.string()));
  if (!step)
    return *checkpoint::find_resumable(root, [](const std::string& text) { spdlog::warn("{}", text); });
  if (const auto found = folders.find(*step); found != folders.end()) return found->second;
  std::vector<int64_t> steps;
  for (const auto& [known, folder] : folders) steps.insert(steps.begin(), known);
  throw UsageError(fmt::format("fork: {} has no checkpoint of step {}, but of {}", run.string(), *step,
                               fmt::join(steps, ", ")));
}

// A checkpoint's files never change, so both folders may share them.
void link_file(const fs::path& from, const fs::path& to) {
  io::make_folder(to.parent_path());
  std::error_code error;
  fs::create_hard_link(from, to, error);
  if (error) io::copy_file(from, to);
}

void link_checkpoint(const fs::path& from, const fs::path& to) {
  const checkpoint::Manifest manifest = checkpoint::read_manifest(from);
  for (const checkpoint::FileEntry& file : manifest.files) link_file(from / file.path(), to / file.path());
  for (const checkpoint::Attachment& file : manifest.attachments) link_file(from / file.path, to / file.path);
  link_file(from / checkpoint::manifest_name, to / checkpoint::manifest_name);
  io::sync_folders(to);
}

std::string job_text(const SavedRun& saved, const fs::path& to) {
  if (!saved.job)
    throw UsageError(fmt::format("fork: {} does not say which job saved it", saved.folder.string()));
  const std::vector<std::string> own = {"run.dir=" + config::toml_string(fs::absolute(to).string()),
                                        "checkpoint.resume=auto"};
  const std::string& text = saved.given.empty() ? config::to_toml(*saved.job) : saved.given;
  return config::given_toml(config::read_document(text, "", own));
}

void write_run(const fs::path& folder, const Fork& fork, const std::string& job) {
  const std::string name = checkpoint::step_folder_name(fork.step);
  io::write_file_atomically(folder / "checkpoints" / checkpoint::latest_name, name + "\n");
  io::write_file_atomically(folder / job_name, job);
  io::write_file_atomically(folder / "metrics.jsonl", "");
  for (Rollback& rollback : parse_rollbacks(read_rollbacks(fork.run))) {
    rollback.inherited = true;
    if (fork.step < rollback.above_since) add_rollback(folder, rollback);  // else the checkpoint has skipped
  }
  const Json json{{"run", fork.run.string()}, {"step", fork.step}, {"time", now_utc()}};
  io::write_file_atomically(folder / fork_name, one_line(json) + "\n");
  write_run_end(folder, {.how = RunPhase::stopped, .step = fork.step, .checkpoint = name});
}

}  // namespace

std::optional<Fork> read_fork(const fs::path& run_dir) {
  try {
    const Json json = Json::parse(io::read_small_file(run_dir / fork_name, longest_fork));
    return Fork{.run = json.at("run").get<std::string>(), .step = json.at("step")};
  } catch (const std::exception&) {  // Error or Json::exception
    return std::nullopt;
  }
}

Fork fork_run(const fs::path& run, std::optional<int64_t> step, const fs::path& to) {
  std::error_code error;
  if (io::is_there(to) && !fs::is_empty(to, error))
    throw UsageError(fmt::format("fork: --to: {} is there already and holds something", to.string()));
  const fs::path from = find_step(run, step);
  const checkpoint::Reader sound(from);  // as far as sizes and headers tell
  const Fork fork{.run = fs::canonical(run), .step = sound.state().step};
  const std::string job = job_text(read_saved_run(from), to);
  const fs::path target = (fs::absolute(to) / "").parent_path();  // "new" of "new/" too
  const fs::path temporary =
      target.parent_path() / fmt::format("{}fork.{}", checkpoint::temporary_prefix, io::unique_suffix());
  try {
    link_checkpoint(from, temporary / "checkpoints" / checkpoint::step_folder_name(fork.step));
    write_run(temporary, fork, job);
    if (io::rename_folder_synced(temporary, target)) fs::remove_all(temporary, error);
  } catch (...) {
    fs::remove_all(temporary, error);
    throw;
  }
  return fork;
}

}  // namespace pptrain::app

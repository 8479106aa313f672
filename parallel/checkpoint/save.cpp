#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <exception>
#include <filesystem>
#include <set>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/timing.h"
#include "core/io/atomic_file.h"
#include "core/io/files.h"
#include "core/io/paths.h"
#include "core/io/safetensors.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/checkpoint/host_copies.h"
#include "parallel/checkpoint/manifest.h"
#include "parallel/checkpoint/snapshot.h"
#include "parallel/checkpoint/step_folders.h"
#include "parallel/checkpoint/verify.h"

namespace pptrain::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr int root_rank = 0;

// The entry without the checksum.
TensorEntry describe_slice(const NamedTensor& t) {
  try {
    nn::check_slice(t.slice);
  } catch (const Error& error) {
    throw Error(fmt::format("the tensor '{}': {}", t.name, error.what()));
  }
  if (t.tensor.numel() != t.slice.numel()) {
    throw Error(fmt::format("the tensor '{}' has {} elements, its slice {}", t.name, t.tensor.numel(),
                            t.slice.numel()));
  }
  return {.dtype = io::dtype_name(t.tensor.scalar_type()), .slice = t.slice, .checksum = {}};
}

// One save of one rank. Its phases contain no communication, so that a rank that fails still takes part in
// the agreement after the phase, and all ranks leave together.
class Save {
 public:
  // All must outlive this.
  Save(comm::Communicator& world, const SaveOptions& options, const SaveTerms& terms, const RunState& state,
       Snapshot& snapshot);

  // Collective. Throws NotSaved.
  void run();

  // The folder of the finished checkpoint. Valid on rank 0, and on the first rank of each host.
  const fs::path& target() const { return target_; }

 private:
  template <typename Phase>
  void agreed(const Phase& phase);

  void prepare();
  std::vector<FileEntry> write();
  std::vector<std::vector<FileEntry>> gather(const std::vector<FileEntry>& mine);
  std::string describe(const std::vector<std::vector<FileEntry>>& files) const;
  void publish(const std::string& manifest);
  void tidy() noexcept;

  bool is_root() const { return world_.rank() == root_rank; }
  // Whether this rank makes, renames and removes the folders that its host sees.
  bool keeps_folders() const { return options_.hosts.is_first(world_.rank()); }
  fs::path free_name(const std::string& name) const;
  void warn(const std::string& text) const;
  void try_to_remove(const fs::path& path, const std::string& what) const;
  FileEntry write_file(const StageContents& stage, const std::string& file,
                       const std::vector<NamedTensor>& tensors);
  void name_best() const;
  void remove_old() const;
  void remove_checkpoint(const fs::path& folder) const;
  StepFolders removable() const;

  comm::Communicator& world_;
  const SaveOptions& options_;
  const SaveTerms& terms_;
  const RunState& state_;
  Snapshot& snapshot_;
  fs::path target_;
  fs::path temporary_;  // "" before prepare()
};

Save::Save(comm::Communicator& world, const SaveOptions& options, const SaveTerms& terms,
           const RunState& state, Snapshot& snapshot)
    : world_(world),
      options_(options),
      terms_(terms),
      state_(state),
      snapshot_(snapshot),
      target_(options.root /
              (terms.diverged ? diverged_folder_name(state.step) : step_folder_name(state.step))) {}

void Save::run() {
  const auto begin = std::chrono::steady_clock::now();
  agreed([&] { prepare(); });
  temporary_ = broadcast_on_hosts(world_, options_.hosts, temporary_.string());
  std::vector<FileEntry> mine;
  agreed([&] {
    mine = write();
    to_text(mine);  // what cannot be described fails here, so that all ranks learn of it
  });
  const std::vector<std::vector<FileEntry>> files = gather(mine);
  std::string manifest;
  if (options_.hosts.several()) {
    agreed([&] { manifest = describe(files); });
    const std::string failure = exchange_with_buddies(world_, options_.hosts, temporary_, files);
    agreed([&] {
      if (!failure.empty()) throw Error(failure);
    });
    manifest = comm::broadcast_string(world_, manifest, root_rank);
    agreed([&] { publish(manifest); });
  } else {
    agreed([&] { publish(describe(files)); });
  }
  int64_t bytes = 0;
  for (const FileEntry& entry : mine) bytes += static_cast<int64_t>(entry.bytes);
  log_of(Subsystem::checkpoint)
      .info("saved '{}': {} files of this rank, {} bytes, {:.3f} s", target_.string(), mine.size(), bytes,
            seconds_since(begin));
  tidy();
}

// Runs `phase` on every rank. If it throws on any, the temporary folder goes and every rank throws NotSaved
// with the message of the first failing rank.
template <typename Phase>
void Save::agreed(const Phase& phase) {
  const auto [failing, message] = first_problem<std::exception>(world_, phase);
  if (failing < 0) return;
  if (keeps_folders() && !temporary_.empty()) {
    std::error_code ignored;
    fs::remove_all(temporary_, ignored);
  }
  throw NotSaved(
      fmt::format("checkpoint '{}' was not saved (rank {}): {}", target_.string(), failing, message));
}

// Makes an empty temporary folder, and removes what killed runs left if it can.
void Save::prepare() {
  if (!keeps_folders()) return;
  const bool is_new = !io::is_there(options_.root);
  io::make_folder(options_.root);
  if (is_new) io::sync_folder(fs::absolute(options_.root).parent_path());
  if (terms_.diverged && io::is_there(target_)) target_ = io::first_free(target_);
  std::vector<fs::path> leftovers;
  for (const auto& entry : fs::directory_iterator(options_.root)) {
    if (entry.path().filename().string().starts_with(temporary_prefix)) leftovers.push_back(entry.path());
  }
  for (const fs::path& leftover : leftovers) try_to_remove(leftover, "what an earlier save left behind");
  temporary_ = free_name(target_.filename().string());
  io::make_folder(temporary_);
}

// ".tmp_step_4" below the root; if that cannot be removed, ".tmp_step_4.1", ...
fs::path Save::free_name(const std::string& name) const {
  const std::string first = temporary_prefix + name;
  fs::path path = options_.root / first;
  std::error_code error;
  for (int i = 1; fs::exists(fs::symlink_status(path, error)); ++i) {
    path = options_.root / fmt::format("{}.{}", first, i);
  }
  return path;
}

void Save::try_to_remove(const fs::path& path, const std::string& what) const {
  std::error_code error;
  fs::remove_all(path, error);
  if (!error) return;
  warn(fmt::format("cannot remove {}, '{}': {}. It stays; nothing else is wrong.", what, path.string(),
                   error.message()));
}

void Save::warn(const std::string& text) const {
  options_.warn ? options_.warn(text) : spdlog::warn("{}", text);
}

std::vector<FileEntry> Save::write() {
  std::vector<FileEntry> written;
  for (const StageContents& stage : snapshot_.stages()) {
    for (const auto& [file, tensors] : stage.files) written.push_back(write_file(stage, file, tensors));
    if (!stage.files.empty()) io::sync_folder((temporary_ / written.back().path()).parent_path());
  }
  return written;
}

FileEntry Save::write_file(const StageContents& stage, const std::string& file,
                           const std::vector<NamedTensor>& tensors) {
  FileEntry entry{.stage = stage.stage,
                  .file = file,
                  .part = stage.part,
                  .parts = stage.parts,
                  .bytes = 0,
                  .tensors = {}};
  check_file_name(entry);
  const auto begin = std::chrono::steady_clock::now();
  std::vector<const NamedTensor*> stored;
  std::vector<io::TensorSpec> specs;
  for (const NamedTensor& t : tensors) {
    const TensorEntry described = describe_slice(t);
    if (t.slice.numel() == 0 && !t.slice.is_whole()) continue;
    stored.push_back(&t);
    specs.push_back({t.name, t.tensor.scalar_type(), described.stored_shape()});
    entry.tensors[t.name] = described;
  }
  const fs::path path = temporary_ / entry.path();
  io::make_folder(path.parent_path());
  io::SafetensorsWriter writer(path, specs);
  for (const NamedTensor* t : stored) {
    entry.tensors[t->name].checksum = writer.write_pieces(
        t->name, [&](uint64_t begin, std::span<std::byte> piece) { snapshot_.read(*t, begin, piece); });
  }
  entry.bytes = writer.finish();
  log_of(Subsystem::checkpoint)
      .debug("wrote {}: {} tensors, {} bytes, {:.3f} s", entry.path().string(), stored.size(), entry.bytes,
             seconds_since(begin));
  return entry;
}

// [rank] its entries; on rank 0, with several hosts on all.
std::vector<std::vector<FileEntry>> Save::gather(const std::vector<FileEntry>& mine) {
  const std::string text = to_text(mine);
  std::vector<std::vector<FileEntry>> all;
  for (const std::string& theirs : options_.hosts.several() ? comm::all_gather_strings(world_, text)
                                                            : comm::gather_strings(world_, text, root_rank))
    all.push_back(parse_files(theirs));
  return all;
}

// Rank 0: the manifest's text, if the files are whole.
std::string Save::describe(const std::vector<std::vector<FileEntry>>& files) const {
  if (!is_root()) return "";
  Manifest manifest{.state = state_,
                    .layout = options_.layout,
                    .job_toml = options_.job_toml,
                    .files = {},
                    .given_toml = options_.given_toml};
  for (const std::vector<FileEntry>& entries : files)
    manifest.files.insert(manifest.files.end(), entries.begin(), entries.end());
  const auto problems = coverage_problems(manifest.files);
  if (!problems.empty()) throw Error(problems.front());
  return to_text(manifest);
}

// From here on the checkpoint exists, on this host.
void Save::publish(const std::string& manifest) {
  if (!keeps_folders()) return;
  if (is_root() && options_.before_publish) options_.before_publish();
  io::OutputFile file(temporary_ / manifest_name);
  file.write(std::as_bytes(std::span(manifest)));
  file.sync_and_close();
  io::sync_folder(temporary_);
  if (io::rename_folder_synced(temporary_, target_))
    try_to_remove(temporary_, "the checkpoint of this step that was there before");
}

// Work that may fail without harm to the checkpoint that exists now, on all hosts.
void Save::tidy() noexcept {
  if (!keeps_folders() || terms_.diverged) return;
  const auto attempt = [&](const auto& action) {
    try {
      action();
    } catch (const std::exception& error) {
      warn(fmt::format("'{}' is saved, but: {}", target_.string(), error.what()));
    }
  };
  attempt(
      [&] { io::write_file_atomically(options_.root / latest_name, target_.filename().string() + "\n"); });
  if (options_.keep_best_n > 0) attempt([&] { name_best(); });
  if (terms_.removes_old && options_.keep_last_n > 0) attempt([&] { remove_old(); });
}

// Names the existing checkpoint with the lowest validation loss.
void Save::name_best() const {
  Scores there = terms_.scores;
  std::erase_if(there, [&](const auto& s) {
    return !io::is_there(options_.root / step_folder_name(s.first) / manifest_name);
  });
  const std::vector<int64_t> best = best_steps(there, 1);
  if (best.empty()) return;
  io::write_file_atomically(options_.root / best_name, step_folder_name(best.front()) + "\n");
}

// All but the one that stays whatever its age.
StepFolders Save::removable() const {
  StepFolders folders = list_step_folders(options_.root);
  std::error_code error;
  std::erase_if(folders, [&](const auto& folder) {
    return folder.first != state_.step && !options_.keep.empty() &&
           fs::equivalent(folder.second, options_.keep, error);
  });
  return folders;
}

void Save::remove_old() const {
  const StepFolders folders = removable();
  std::vector<int64_t> steps;
  for (const auto& [step, folder] : folders) steps.push_back(step);
  const std::set<int64_t> kept =
      kept_steps(steps, state_.step, options_.keep_last_n, options_.keep_best_n, terms_.scores);
  for (const auto& [step, folder] : folders) {
    if (!kept.contains(step)) remove_checkpoint(folder);
  }
}

// A folder is renamed to a temporary name first, so that one half removed never looks like a checkpoint.
void Save::remove_checkpoint(const fs::path& folder) const {
  const fs::path leaving = free_name(folder.filename().string());
  std::error_code error;
  fs::rename(folder, leaving, error);
  if (error) {
    warn(fmt::format("cannot remove an old checkpoint, '{}': {}. It stays; nothing else is wrong.",
                     folder.string(), error.message()));
  } else {
    try_to_remove(leaving, "an old checkpoint");
  }
}

}  // namespace

fs::path save_snapshot(comm::Communicator& world, const SaveOptions& options, const SaveTerms& terms,
                       const RunState& state, Snapshot& snapshot) {
  Save save(world, options, terms, state, snapshot);
  save.run();
  return save.target();
}

void save(comm::Communicator& world, const SaveOptions& options, const RunState& state,
          const std::vector<StageContents>& stages, const SaveTerms& terms) {
  std::optional<c10::Stream> side;
  Snapshot snapshot(stages, side);
  save_snapshot(world, options, terms, state, snapshot);
}

std::unique_ptr<comm::Communicator> disk_communicator(comm::Communicator& world) {
  auto comm = world.host().duplicate();
  comm->set_timeout(std::chrono::hours(24));
  return comm;
}

}  // namespace pptrain::checkpoint

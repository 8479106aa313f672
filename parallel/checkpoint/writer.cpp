#include <spdlog/fmt/fmt.h>

#include <cerrno>
#include <exception>
#include <span>
#include <utility>

#include "core/base/error.h"
#include "core/io/atomic_file.h"
#include "core/io/output_file.h"
#include "core/io/safetensors.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/checkpoint/coverage.h"
#include "parallel/checkpoint/manifest.h"
#include "parallel/checkpoint/step_folders.h"

namespace pptrain::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr int root_rank = 0;

// The lowest rank that says true; -1 if none does.
int first_rank(comm::Communicator& world, bool value) {
  std::vector<double> flags(static_cast<size_t>(world.size()), 0);
  flags[static_cast<size_t>(world.rank())] = value ? 1 : 0;
  flags = comm::all_reduce_sum(world, flags);
  for (size_t rank = 0; rank < flags.size(); ++rank) {
    if (flags[rank] != 0) return static_cast<int>(rank);
  }
  return -1;
}

// One save of one rank. Its phases contain no communication, so that a rank that fails still takes part in
// the agreement after the phase, and all ranks leave together.
class Save {
 public:
  Save(comm::Communicator& world, fs::path root, int64_t step)
      : world_(world),
        root_(std::move(root)),
        temporary_(root_ / (temporary_prefix + step_folder_name(step))),
        target_(root_ / step_folder_name(step)) {}

  // Runs `phase` on every rank. If it throws on any, rank 0 removes the temporary folder and every rank
  // throws Error with the message of the first failing rank.
  template <typename Phase>
  void agreed(const Phase& phase) {
    std::string message;
    bool failed = false;
    try {
      phase();
    } catch (const std::exception& error) {
      failed = true;
      message = error.what();
    }
    const int failing = first_rank(world_, failed);
    if (failing < 0) return;
    message = comm::broadcast_string(world_, message, failing);
    if (is_root()) {
      std::error_code ignored;
      fs::remove_all(temporary_, ignored);
    }
    throw Error(
        fmt::format("checkpoint '{}' was not saved (rank {}): {}", target_.string(), failing, message));
  }

  // Rank 0: an empty temporary folder, and nothing left of killed runs.
  void prepare() const {
    if (!is_root()) return;
    std::error_code error;
    fs::create_directories(root_, error);
    if (error || !fs::is_directory(root_))
      throw io::file_error("cannot create the folder", root_, reason(error));
    std::vector<fs::path> leftovers;
    for (const auto& entry : fs::directory_iterator(root_)) {
      if (entry.path().filename().string().starts_with(temporary_prefix)) leftovers.push_back(entry.path());
    }
    for (const fs::path& leftover : leftovers) remove(leftover);
    create_folder(temporary_);
  }

  std::vector<FileEntry> write(const std::vector<StageContents>& stages) const {
    std::vector<FileEntry> written;
    for (const StageContents& stage : stages) {
      for (const auto& [file, tensors] : stage.files) written.push_back(write_file(stage, file, tensors));
      if (!stage.files.empty()) io::sync_folder((temporary_ / written.back().path()).parent_path());
    }
    return written;
  }

  // Every rank's entries, in rank order, on every rank.
  std::vector<FileEntry> gather(const std::vector<FileEntry>& mine) const {
    std::vector<FileEntry> all;
    for (int rank = 0; rank < world_.size(); ++rank) {
      const std::string text =
          comm::broadcast_string(world_, rank == world_.rank() ? to_text(mine) : "", rank);
      for (FileEntry& entry : parse_files(text)) all.push_back(std::move(entry));
    }
    return all;
  }

  // Rank 0: from here on the checkpoint exists.
  void publish(const Manifest& manifest, int64_t keep_last_n) const {
    if (!is_root()) return;
    const auto problems = coverage_problems(manifest.files);
    if (!problems.empty()) throw Error(problems.front());
    const std::string text = to_text(manifest);
    io::OutputFile file(temporary_ / manifest_name);
    file.write(std::as_bytes(std::span(text)));
    file.sync_and_close();
    io::sync_folder(temporary_);
    if (io::rename_folder_synced(temporary_, target_)) remove(temporary_);
    io::write_file_atomically(root_ / latest_name, target_.filename().string() + "\n");
    remove_old(keep_last_n);
  }

 private:
  bool is_root() const { return world_.rank() == root_rank; }

  static int reason(const std::error_code& error) { return error ? error.value() : ENOTDIR; }

  static void remove(const fs::path& path) {
    std::error_code error;
    fs::remove_all(path, error);
    if (error) throw io::file_error("cannot remove", path, error.value());
  }

  FileEntry write_file(const StageContents& stage, const std::string& file,
                       const std::vector<NamedTensor>& tensors) const {
    FileEntry entry{.stage = stage.stage,
                    .file = file,
                    .part = stage.part,
                    .parts = stage.parts,
                    .bytes = 0,
                    .tensors = {}};
    check_file_name(entry);
    std::vector<NamedTensor> stored;  // as they lie in the file
    std::vector<io::TensorSpec> specs;
    for (const NamedTensor& t : tensors) {
      const TensorEntry described = describe_slice(t);
      if (t.slice.numel() == 0 && !t.slice.is_whole()) continue;
      stored.push_back({t.name, t.slice, t.tensor.contiguous().view(described.stored_shape())});
      specs.push_back({t.name, t.tensor.scalar_type(), described.stored_shape()});
      entry.tensors[t.name] = described;
    }
    const fs::path path = temporary_ / entry.path();
    create_folder(path.parent_path());
    io::SafetensorsWriter writer(path, specs);
    for (const NamedTensor& t : stored) entry.tensors[t.name].checksum = writer.write(t.name, t.tensor);
    entry.bytes = writer.finish();
    return entry;
  }

  // All but the checksum.
  static TensorEntry describe_slice(const NamedTensor& t) {
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

  // That it is there already is no failure: several ranks may create one stage's folder at once.
  static void create_folder(const fs::path& folder) {
    std::error_code error;
    fs::create_directory(folder, error);
    if (error) throw io::file_error("cannot create the folder", folder, error.value());
  }

  // A folder leaves under a temporary name, so that one half removed never looks like a checkpoint.
  void remove_old(int64_t keep_last_n) const {
    if (keep_last_n <= 0) return;
    int64_t kept = 1;  // the one just saved
    for (const StepFolder& folder : list_step_folders(root_)) {
      if (folder.path.filename() == target_.filename() || kept++ < keep_last_n) continue;
      const fs::path leaving = root_ / (temporary_prefix + folder.path.filename().string());
      io::rename_folder_synced(folder.path, leaving);
      remove(leaving);
    }
  }

  comm::Communicator& world_;
  fs::path root_;
  fs::path temporary_;
  fs::path target_;
};

}  // namespace

NamedTensor whole_tensor(std::string name, at::Tensor tensor) {
  nn::SliceShape slice = nn::whole_slice(tensor.sizes().vec());
  return {.name = std::move(name), .slice = std::move(slice), .tensor = std::move(tensor)};
}

void save(comm::Communicator& world, const fs::path& root, const RunState& state, const Layout& layout,
          const std::string& job_toml, const std::vector<StageContents>& stages, int64_t keep_last_n) {
  Save save(world, root, state.step);
  save.agreed([&] { save.prepare(); });
  std::vector<FileEntry> mine;
  save.agreed([&] {
    mine = save.write(stages);
    to_text(mine);  // what cannot be described fails here, where all ranks hear of it
  });
  const Manifest manifest{.state = state, .layout = layout, .job_toml = job_toml, .files = save.gather(mine)};
  save.agreed([&] { save.publish(manifest, keep_last_n); });
}

}  // namespace pptrain::checkpoint

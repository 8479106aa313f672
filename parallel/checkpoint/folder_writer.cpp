#include "parallel/checkpoint/folder_writer.h"

#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <exception>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <system_error>
#include <utility>

#include "core/base/error.h"
#include "core/io/atomic_file.h"
#include "core/io/checksum.h"
#include "core/io/files.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/checkpoint/step_folders.h"

namespace pptrain::checkpoint {
namespace {

namespace fs = std::filesystem;

// A different name for each process.
std::string probe_name() {
  std::random_device random;
  return fmt::format("{}probe_{:08x}{:08x}", temporary_prefix, random(), random());
}

// A file that is removed with the object.
class ProbeFile {
 public:
  explicit ProbeFile(fs::path path) : path_(std::move(path)) {
    io::OutputFile file(path_);
    created_ = true;
    try {
      const std::string text = "can this folder be written?\n";
      file.write(std::as_bytes(std::span(text)));
      file.sync_and_close();
    } catch (...) {
      remove();
      throw;
    }
  }
  ~ProbeFile() { remove(); }
  ProbeFile(const ProbeFile&) = delete;
  ProbeFile& operator=(const ProbeFile&) = delete;

 private:
  void remove() const {
    std::error_code ignored;
    if (created_) fs::remove(path_, ignored);
  }
  fs::path path_;
  bool created_ = false;
};

fs::path nearest_folder(fs::path folder) {
  std::error_code error;
  folder = fs::absolute(folder).lexically_normal();
  while (!fs::exists(fs::symlink_status(folder, error)) && folder.has_relative_path()) {
    folder = folder.parent_path();
  }
  return folder;
}

// Throws on all ranks the problem of the first rank that has one; rank 0's is not prefixed with the rank.
template <typename Action>
void on_all(comm::Communicator& comm, const Action& action) {
  const auto [failing, problem] = first_problem<std::exception>(comm, action);
  if (failing >= 0) throw Error(failing == 0 ? problem : fmt::format("rank {}: {}", failing, problem));
}

FileEntry entry_of(const std::vector<io::TensorSpec>& parameters) {
  FileEntry entry{.stage = 0, .file = model_file, .part = 0, .parts = 1, .bytes = 0, .tensors = {}};
  for (const io::TensorSpec& spec : parameters) {
    entry.tensors[spec.name] = {
        .dtype = io::dtype_name(spec.dtype), .slice = nn::whole_slice(spec.shape), .checksum = {}};
  }
  return entry;
}

fs::path with_folder(const fs::path& file) {
  io::make_folder(file.parent_path());
  return file;
}

}  // namespace

void probe(const fs::path& folder) {
  const ProbeFile file(nearest_folder(folder) / probe_name());
}

void probe_shared(comm::Communicator& comm, const fs::path& root) {
  std::optional<ProbeFile> file;
  std::string seen;
  on_all(comm, [&] {
    if (comm.rank() != 0) return;
    seen = probe_name();
    io::make_folder(root);
    file.emplace(root / seen);
  });
  seen = comm::broadcast_string(comm, seen, 0);
  on_all(comm, [&] {
    if (comm.rank() == 0) return;
    if (!fs::exists(root / seen)) {
      throw Error(
          fmt::format("'{}' is not the folder that rank 0 sees under this name; run.dir must be one folder "
                      "for all ranks, on a file system that their hosts share",
                      root.string()));
    }
    probe(root);
  });
}

FolderWriter::FolderWriter(fs::path folder, const std::vector<io::TensorSpec>& parameters)
    : folder_(std::move(folder)),
      manifest_{.state = {}, .layout = {}, .job_toml = {}, .files = {entry_of(parameters)}},
      file_(with_folder(folder_ / manifest_.files.front().path()), parameters) {}

void FolderWriter::write(const std::string& parameter, const io::SafetensorsWriter::Fill& fill) {
  manifest_.files.front().tensors[parameter].checksum = file_.write_pieces(parameter, fill);
}

void FolderWriter::attach(const std::string& path) {
  manifest_.attachments.push_back(
      {.path = path, .bytes = fs::file_size(folder_ / path), .checksum = io::file_checksum(folder_ / path)});
}

void FolderWriter::finish(const RunState& state, const Layout& layout, const std::string& job_toml) {
  manifest_.files.front().bytes = file_.finish();
  manifest_.state = state;
  manifest_.layout = layout;
  manifest_.job_toml = job_toml;
  const std::string text = to_text(manifest_);
  io::OutputFile file(folder_ / manifest_name);
  file.write(std::as_bytes(std::span(text)));
  file.sync_and_close();
}

}  // namespace pptrain::checkpoint

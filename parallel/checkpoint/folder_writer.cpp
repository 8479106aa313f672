#include "parallel/checkpoint/folder_writer.h"

#include <span>
#include <system_error>
#include <utility>

#include "core/io/copy_file.h"
#include "core/io/file_descriptor.h"
#include "core/io/output_file.h"

namespace pptrain::checkpoint {
namespace {

namespace fs = std::filesystem;

FileEntry entry_of(const std::vector<io::TensorSpec>& parameters) {
  FileEntry entry{.stage = 0, .file = model_file, .part = 0, .parts = 1, .bytes = 0, .tensors = {}};
  for (const io::TensorSpec& spec : parameters) {
    entry.tensors[spec.name] = {
        .dtype = io::dtype_name(spec.dtype), .slice = nn::whole_slice(spec.shape), .checksum = {}};
  }
  return entry;
}

fs::path with_folder(const fs::path& file) {
  std::error_code error;
  fs::create_directory(file.parent_path(), error);
  if (error) throw io::file_error("cannot create the folder", file.parent_path(), error.value());
  return file;
}

}  // namespace

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

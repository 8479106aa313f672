#include "core/io/atomic_file.h"

#include <linux/fs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <span>
#include <string>

#include "core/io/file_descriptor.h"
#include "core/io/output_file.h"

namespace pptrain::io {
namespace {

std::filesystem::path parent_folder(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

void rename_path(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) {
    throw file_error("cannot rename '" + from.string() + "' to", to, errno);
  }
}

}  // namespace

void sync_folder(const std::filesystem::path& folder) {
  const FileDescriptor file = open_file(folder, O_RDONLY | O_DIRECTORY);
  // Some network file systems cannot sync a folder and say EINVAL; their renames are synchronous.
  if (::fsync(file.get()) != 0 && errno != EINVAL) throw file_error("cannot sync the folder", folder, errno);
}

void write_file_atomically(const std::filesystem::path& path, std::string_view content) {
  const auto temporary =
      parent_folder(path) / (".tmp_" + path.filename().string() + "." + std::to_string(::getpid()));
  std::error_code ignored;
  std::filesystem::remove(temporary, ignored);  // of a killed process that had the same id
  try {
    OutputFile file(temporary);
    file.write(std::as_bytes(std::span(content)));
    file.sync_and_close();
    rename_path(temporary, path);
  } catch (...) {
    std::filesystem::remove(temporary, ignored);
    throw;
  }
  sync_folder(parent_folder(path));
}

bool rename_folder_synced(const std::filesystem::path& from, const std::filesystem::path& to) {
  bool swapped = false;
  if (std::filesystem::exists(std::filesystem::symlink_status(to))) {
    if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) != 0) {
      // No exchange on this file system: `to` is absent for an instant between the renames.
      const std::filesystem::path aside = from.string() + ".old";
      rename_path(to, aside);
      rename_path(from, to);
      rename_path(aside, from);
    }
    swapped = true;
  } else {
    rename_path(from, to);
  }
  sync_folder(parent_folder(to));
  return swapped;
}

}  // namespace pptrain::io

// Files: opened, read and written with errors that name the file and the reason.
#pragma once

#include <fcntl.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <string_view>

#include "core/base/error.h"
#include "core/base/file_descriptor.h"

namespace pptrain::io {

// "ACTION 'PATH': REASON".
Error file_error(std::string_view action, const std::filesystem::path& path, int error_number);

// flags: O_RDONLY, O_WRONLY | O_CREAT, ... (O_CLOEXEC is added). Throws file_error.
FileDescriptor open_file(const std::filesystem::path& path, int flags);

// The same for a file of the program's own in a folder that others may write to: a link there is not
// followed, a pipe is not waited for. Throws Error if something else than a regular file has the name.
FileDescriptor open_own_file(const std::filesystem::path& path, int flags);

// A file that is read at chosen places. Unlike with a mapping, a device that fails is an Error and not a
// signal. Opened without waiting: a pipe, a socket, a device or a folder in a file's place is an error at
// once.
class RegularFile {
 public:
  // Throws Error with the path, and the system's reason or what is there instead of a file.
  explicit RegularFile(std::filesystem::path path);

  uint64_t size() const { return size_; }  // in bytes, when it was opened
  int descriptor() const { return file_.get(); }
  const std::filesystem::path& path() const { return path_; }
  // Reads out.size() bytes from `offset` on. Throws Error with the reason, also if the file ends earlier.
  void read(uint64_t offset, std::span<std::byte> out) const;
  // Hands the first `end` bytes to `take`, block by block, in order.
  void read_blocks(uint64_t end, const std::function<void(std::span<const std::byte>)>& take) const;

 private:
  std::filesystem::path path_;
  FileDescriptor file_;
  uint64_t size_ = 0;
};

// --- A file being written, with every failure reported.

// Creates a new file; one that is there already is an error, so that two writers never mix in one file.
// Not atomic: see atomic_file.h.
class OutputFile {
 public:
  explicit OutputFile(std::filesystem::path path);

  // Appends. Throws Error with the path and the system's reason (disk full, ...).
  void write(std::span<const std::byte> bytes);
  // Writes at a byte offset, beyond the end too; does not move the append position.
  void write_at(uint64_t offset, std::span<const std::byte> bytes);
  // Forces everything to the device and closes. Without it the file is closed unsynced.
  void sync_and_close();

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  FileDescriptor file_;
  uint64_t end_ = 0;  // append position
};

// --- Files of a few lines, read whole.

// The content of a regular file of `longest` bytes at most. Throws Error with the path if it is none, cannot
// be read or is longer.
std::string read_small_file(const std::filesystem::path& path, size_t longest);

// Makes the folder, and its missing parents. Throws file_error.
void make_folder(const std::filesystem::path& folder);

// Writes the first `bytes` bytes of `source` (all of it if it has fewer) to the new file `target` and syncs
// it, block by block; folders above `target` are made. Links are followed. Throws Error that names the file
// and the system's reason.
void copy_file(const std::filesystem::path& source, const std::filesystem::path& target,
               uint64_t bytes = std::numeric_limits<uint64_t>::max());

}  // namespace pptrain::io

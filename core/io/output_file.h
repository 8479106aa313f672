// A file being written, with every failure reported.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

#include "core/io/file_descriptor.h"

namespace pptrain::io {

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

}  // namespace pptrain::io

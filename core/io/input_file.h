// A file read at chosen places. Unlike with a mapping, a device that fails is an Error and not a signal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

#include "core/io/file_descriptor.h"

namespace pptrain::io {

class InputFile {
 public:
  // Throws Error with the path and the system's reason.
  explicit InputFile(std::filesystem::path path);

  // Fills `out` with the bytes from `offset` on. Throws Error with the path and the system's reason, or where
  // the file ends before.
  void read_at(uint64_t offset, std::span<std::byte> out) const;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  FileDescriptor file_;
};

}  // namespace pptrain::io

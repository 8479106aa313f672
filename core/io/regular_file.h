// Files from outside, opened without waiting: a pipe, a socket, a device or a folder in a file's place is an
// error at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "core/io/file_descriptor.h"

namespace pptrain::io {

class RegularFile {
 public:
  // Throws Error with the path, and the system's reason or what is there instead of a file.
  explicit RegularFile(std::filesystem::path path);

  uint64_t size() const { return size_; }  // in bytes, when it was opened
  int descriptor() const { return file_.get(); }
  const std::filesystem::path& path() const { return path_; }
  // Reads out.size() bytes from `offset` on. Throws Error with the reason, also where the file ends earlier.
  void read(uint64_t offset, std::span<std::byte> out) const;

 private:
  std::filesystem::path path_;
  FileDescriptor file_;
  uint64_t size_ = 0;
};

}  // namespace pptrain::io

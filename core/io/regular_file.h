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

// "a pipe", "a folder", ..., where something else than a regular file is there; "" for a regular file, and
// where nothing is.
std::string special_kind(const std::filesystem::path& path);

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

// All of a file. Throws Error as RegularFile does, and for one of more than max_bytes.
std::string read_text_file(const std::filesystem::path& path, uint64_t max_bytes = uint64_t{1} << 30);

}  // namespace pptrain::io

// A file seen as memory, read-only.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

#include "core/io/mapped_region.h"

namespace pptrain::io {

// Owns a private read-only mapping of a whole regular file. Pages are read when touched, so opening costs
// nothing. A file that is shortened while it is mapped ends the process (mapped_region.h).
class MappedFile {
 public:
  // Throws Error with the path and the system's reason; waits for no pipe (regular_file.h).
  explicit MappedFile(std::filesystem::path path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  // Empty for an empty file. Page-aligned.
  std::span<const std::byte> bytes() const { return bytes_; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  std::span<const std::byte> bytes_;
  MappedRegion region_;
};

}  // namespace pptrain::io

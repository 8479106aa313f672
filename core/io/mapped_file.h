// A file seen as memory, read-only.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace pptrain::io {

// Owns a private read-only mapping of a whole regular file. Pages are read when touched, so opening costs
// nothing. The file must not be shortened while it is mapped.
class MappedFile {
 public:
  // Throws Error with the path and the system's reason.
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
};

}  // namespace pptrain::io

// A file seen as memory, read-only.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>

namespace pptrain::io {

// --- Mapped files that stop being readable while they are read: the system raises SIGBUS for a page behind
// the end of a shortened file, or one that cannot be read from the device.

// From here on, in this process:
// - A bus error within a MappedFile, on any thread, ends the process with exit code 1 and a message that
//   names the file. Any other one is explained, and ends the process as it would have.
// - A write beyond the limit of a file's size (ulimit -f) fails with EFBIG, instead of ending the process by
//   SIGXFSZ. Every writer reports it with the file's name.
void report_file_faults();

// Owns a private read-only mapping of a whole regular file. Pages are read when touched, so opening costs
// nothing. A file that is shortened while it is mapped ends the process (report_file_faults).
class MappedFile {
 public:
  // Throws Error with the path and the system's reason; waits for no pipe (RegularFile).
  explicit MappedFile(std::filesystem::path path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  // Empty for an empty file. Page-aligned.
  std::span<const std::byte> bytes() const { return bytes_; }
  std::string_view text() const { return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()}; }
  const std::filesystem::path& path() const { return path_; }

  struct Entry;  // by which the handler of bus errors finds the file

 private:
  std::filesystem::path path_;
  std::span<const std::byte> bytes_;
  Entry* entry_ = nullptr;
};

}  // namespace pptrain::io

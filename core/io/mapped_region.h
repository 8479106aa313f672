// Mapped files that stop being readable while they are read: the system raises SIGBUS where a page lies
// behind the end of a file that was shortened, or cannot be read from the device.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace pptrain::io {

// While it lives, the bus errors within these bytes are known to be of the file `path`.
class MappedRegion {
 public:
  MappedRegion() = default;
  MappedRegion(std::span<const std::byte> bytes, const std::filesystem::path& path);
  ~MappedRegion();
  MappedRegion(MappedRegion&& other) noexcept;
  MappedRegion& operator=(MappedRegion&& other) noexcept;

  struct Entry;

 private:
  Entry* entry_ = nullptr;
};

// From here on, of this process:
// - a bus error within a MappedRegion, on any thread, ends the process with exit code 1 and a message that
//   names the file. Any other one is explained, and ends the process as it would have;
// - a write beyond the limit of a file's size (ulimit -f) fails with EFBIG, which every writer reports with
//   the file's name, instead of ending the process by SIGXFSZ.
void report_file_faults();

}  // namespace pptrain::io

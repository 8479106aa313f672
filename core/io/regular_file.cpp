#include "core/io/regular_file.h"

#include <spdlog/fmt/fmt.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>

#include "core/base/error.h"
#include "core/base/special_file.h"

namespace pptrain::io {

// Looked at before it is opened, since opening a device can act on it; and after, since it may have changed.
// O_NONBLOCK: a pipe that came in between is not waited for.
RegularFile::RegularFile(std::filesystem::path path) : path_(std::move(path)) {
  if (const std::string kind = special_file(path_); !kind.empty()) {
    throw Error(fmt::format("'{}' is {}, not a regular file", path_.string(), kind));
  }
  file_ = open_file(path_, O_RDONLY | O_NONBLOCK | O_NOCTTY);
  struct stat info {};
  if (::fstat(file_.get(), &info) != 0) throw file_error("cannot read the size of", path_, errno);
  if (!S_ISREG(info.st_mode)) throw Error(fmt::format("'{}' is not a regular file", path_.string()));
  size_ = static_cast<uint64_t>(info.st_size);
}

void RegularFile::read(uint64_t offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    const ssize_t count = ::pread(file_.get(), out.data(), out.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw file_error("cannot read", path_, errno);
    if (count == 0) {
      throw Error(fmt::format("'{}' ends at byte {}, but had {} bytes when it was opened: it was shortened",
                              path_.string(), offset, size_));
    }
    out = out.subspan(static_cast<size_t>(count));
    offset += static_cast<uint64_t>(count);
  }
}

}  // namespace pptrain::io

#include "core/io/regular_file.h"

#include <spdlog/fmt/fmt.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "core/base/error.h"

namespace pptrain::io {
namespace {

std::string kind_of(mode_t mode) {
  if (S_ISREG(mode)) return "";
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

Error not_a_file(const std::filesystem::path& path, const std::string& kind) {
  return Error(fmt::format("'{}' is {}; expected a regular file", path.string(), kind));
}

}  // namespace

std::string special_kind(const std::filesystem::path& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 ? kind_of(info.st_mode) : "";
}

// Looked at before it is opened, since opening a device can act on it; and after, since it may have changed.
// O_NONBLOCK: a pipe that came in between is not waited for.
RegularFile::RegularFile(std::filesystem::path path) : path_(std::move(path)) {
  if (const std::string kind = special_kind(path_); !kind.empty()) throw not_a_file(path_, kind);
  file_ = open_file(path_, O_RDONLY | O_NONBLOCK | O_NOCTTY);
  struct stat info {};
  if (::fstat(file_.get(), &info) != 0) throw file_error("cannot read the size of", path_, errno);
  if (const std::string kind = kind_of(info.st_mode); !kind.empty()) throw not_a_file(path_, kind);
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

std::string read_text_file(const std::filesystem::path& path, uint64_t max_bytes) {
  const RegularFile file(path);
  if (file.size() > max_bytes) {
    throw Error(fmt::format("'{}' has {} bytes, more than the {} that are read of such a file", path.string(),
                            file.size(), max_bytes));
  }
  std::string text(file.size(), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

}  // namespace pptrain::io

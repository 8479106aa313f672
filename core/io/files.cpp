#include "core/io/files.h"

#include <spdlog/fmt/fmt.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <system_error>
#include <utility>

#include "core/base/special_file.h"

namespace pptrain::io {

Error file_error(std::string_view action, const std::filesystem::path& path, int error_number) {
  return Error(
      fmt::format("{} '{}': {}", action, path.string(), std::system_category().message(error_number)));
}

FileDescriptor open_file(const std::filesystem::path& path, int flags) {
  int fd = -1;
  do {
    fd = ::open(path.c_str(), flags | O_CLOEXEC, 0644);
  } while (fd < 0 && errno == EINTR);
  if (fd < 0) throw file_error((flags & O_CREAT) != 0 ? "cannot create" : "cannot open", path, errno);
  return FileDescriptor(fd);
}

FileDescriptor open_own_file(const std::filesystem::path& path, int flags) {
  FileDescriptor file = open_file(path, flags | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) throw file_error("cannot look at", path, errno);
  if (!S_ISREG(info.st_mode))
    throw Error(fmt::format("'{}' is not a regular file: move it away", path.string()));
  return file;
}

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

void RegularFile::read_blocks(uint64_t end,
                              const std::function<void(std::span<const std::byte>)>& take) const {
  constexpr uint64_t block_bytes = uint64_t{1} << 20;
  const auto buffer = std::make_unique_for_overwrite<std::byte[]>(std::min(end, block_bytes));
  for (uint64_t at = 0; at < end; at += block_bytes) {
    const std::span block(buffer.get(), std::min(block_bytes, end - at));
    read(at, block);
    take(block);
  }
}

OutputFile::OutputFile(std::filesystem::path path)
    : path_(std::move(path)), file_(open_file(path_, O_WRONLY | O_CREAT | O_EXCL)) {}

void OutputFile::write(std::span<const std::byte> bytes) {
  write_at(end_, bytes);
  end_ += bytes.size();
}

void OutputFile::write_at(uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(file_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw file_error("cannot write to", path_, errno);
    if (written == 0) throw file_error("cannot write to", path_, ENOSPC);
    bytes = bytes.subspan(static_cast<size_t>(written));
    offset += static_cast<uint64_t>(written);
  }
}

void OutputFile::sync_and_close() {
  while (::fsync(file_.get()) != 0) {
    if (errno != EINTR) throw file_error("cannot sync", path_, errno);
  }
  if (::close(file_.release()) != 0) throw file_error("cannot close", path_, errno);
}

std::string read_small_file(const std::filesystem::path& path, size_t longest) {
  const RegularFile file(path);
  if (file.size() > longest) {
    throw Error(
        fmt::format("'{}' has {} bytes; {} at most were expected", path.string(), file.size(), longest));
  }
  std::string text(file.size(), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

void make_folder(const std::filesystem::path& folder) {
  std::error_code error, ignored;
  std::filesystem::create_directories(folder, error);
  if (error || !std::filesystem::is_directory(folder, ignored))
    throw file_error("cannot create the folder", folder, error ? error.value() : ENOTDIR);
}

void copy_file(const std::filesystem::path& source, const std::filesystem::path& target, uint64_t bytes) {
  const RegularFile from(source);
  make_folder(target.parent_path());
  OutputFile to(target);
  from.read_blocks(std::min(bytes, from.size()), [&](std::span<const std::byte> block) { to.write(block); });
  to.sync_and_close();
}

}  // namespace pptrain::io

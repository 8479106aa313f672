// POSIX file descriptors that close themselves, and errors that say which file and why.
#pragma once

#include <fcntl.h>

#include <filesystem>
#include <string_view>
#include <utility>

#include "core/base/error.h"

namespace pptrain::io {

class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor();
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  // Gives the descriptor up, unclosed.
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

// "ACTION 'PATH': REASON".
Error file_error(std::string_view action, const std::filesystem::path& path, int error_number);

// flags: O_RDONLY, O_WRONLY | O_CREAT, ... (O_CLOEXEC is added). Throws file_error.
FileDescriptor open_file(const std::filesystem::path& path, int flags);

// The same for a file of the program's own in a folder that others may write to: a link there is not
// followed, a pipe is not waited for. Throws Error where something else than a regular file has the name.
FileDescriptor open_own_file(const std::filesystem::path& path, int flags);

}  // namespace pptrain::io

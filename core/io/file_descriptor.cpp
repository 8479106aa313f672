#include "core/io/file_descriptor.h"

#include <spdlog/fmt/fmt.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <system_error>

namespace pptrain::io {

FileDescriptor::~FileDescriptor() {
  if (valid()) ::close(fd_);
}

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

}  // namespace pptrain::io

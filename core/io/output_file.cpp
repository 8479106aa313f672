#include "core/io/output_file.h"

#include <unistd.h>

#include <cerrno>
#include <utility>

namespace pptrain::io {

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

}  // namespace pptrain::io

#include "core/io/mapped_file.h"

#include <spdlog/fmt/fmt.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <utility>

#include "core/base/error.h"
#include "core/io/file_descriptor.h"

namespace pptrain::io {

MappedFile::MappedFile(std::filesystem::path path) : path_(std::move(path)) {
  const FileDescriptor file = open_file(path_, O_RDONLY);
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) throw file_error("cannot read the size of", path_, errno);
  if (!S_ISREG(info.st_mode)) throw Error(fmt::format("'{}' is not a regular file", path_.string()));
  if (info.st_size == 0) return;
  const auto size = static_cast<size_t>(info.st_size);
  void* const memory = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (memory == MAP_FAILED) throw file_error("cannot map", path_, errno);
  bytes_ = {static_cast<const std::byte*>(memory), size};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

}  // namespace pptrain::io

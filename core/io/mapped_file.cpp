#include "core/io/mapped_file.h"

#include <sys/mman.h>

#include <cerrno>
#include <utility>

#include "core/io/file_descriptor.h"
#include "core/io/regular_file.h"

namespace pptrain::io {

MappedFile::MappedFile(std::filesystem::path path) : path_(std::move(path)) {
  const RegularFile file(path_);
  if (file.size() == 0) return;
  void* const memory = ::mmap(nullptr, file.size(), PROT_READ, MAP_PRIVATE, file.descriptor(), 0);
  if (memory == MAP_FAILED) throw file_error("cannot map", path_, errno);
  bytes_ = {static_cast<const std::byte*>(memory), file.size()};
  region_ = MappedRegion(bytes_, path_);
}

MappedFile::~MappedFile() {
  region_ = {};
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      bytes_(std::exchange(other.bytes_, {})),
      region_(std::move(other.region_)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(bytes_, other.bytes_);
  std::swap(region_, other.region_);
  return *this;
}

}  // namespace pptrain::io

#include "core/data/fingerprint.h"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/data/documents.h"
#include "core/io/checksum.h"
#include "core/io/files.h"

namespace pptrain::data {

static_assert(std::endian::native == std::endian::little, "fingerprints are of little-endian lengths");

std::string fingerprint(std::span<const std::filesystem::path> files) {
  io::Checksum checksum;
  std::vector<std::byte> bytes;
  for (const std::filesystem::path& path : files) {
    const io::RegularFile file(path);
    const uint64_t size = file.size();
    checksum.add(std::as_bytes(std::span(&size, 1)));
    for (const Place& place : places_of(size, files.size())) {
      bytes.resize(place.bytes);
      file.read(place.offset, bytes);
      checksum.add(bytes);
    }
  }
  return checksum.hex();
}

std::string fingerprint(const std::filesystem::path& file) {
  return fingerprint(std::span(&file, 1));
}

}  // namespace pptrain::data

#include "core/data/fingerprint.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/io/checksum.h"
#include "core/io/regular_file.h"

namespace pptrain::data {
namespace {

static_assert(std::endian::native == std::endian::little, "fingerprints are of little-endian lengths");

constexpr uint64_t all_places = 24;
constexpr uint64_t piece_bytes = 16 << 10;

void add_file(io::Checksum& checksum, const io::RegularFile& file, uint64_t places) {
  const uint64_t size = file.size();
  checksum.add(std::as_bytes(std::span(&size, 1)));
  std::vector<std::byte> piece(std::min(size, piece_bytes));
  const auto add = [&](uint64_t offset, uint64_t count) {
    const auto bytes = std::span(piece).first(count);
    file.read(offset, bytes);
    checksum.add(bytes);
  };
  if (size <= places * piece_bytes) {
    for (uint64_t offset = 0; offset < size; offset += piece_bytes)
      add(offset, std::min(piece_bytes, size - offset));
    return;
  }
  // The division comes first, so that no length overflows; the last piece ends with the file.
  const uint64_t step = (size - piece_bytes) / (places - 1);
  for (uint64_t i = 0; i + 1 < places; ++i) add(i * step, piece_bytes);
  add(size - piece_bytes, piece_bytes);
}

}  // namespace

std::string fingerprint(std::span<const std::filesystem::path> files) {
  const uint64_t places = std::max<uint64_t>(2, all_places / std::max<size_t>(1, files.size()));
  io::Checksum checksum;
  for (const std::filesystem::path& path : files) add_file(checksum, io::RegularFile(path), places);
  return checksum.hex();
}

std::string fingerprint(const std::filesystem::path& file) {
  return fingerprint(std::span(&file, 1));
}

}  // namespace pptrain::data

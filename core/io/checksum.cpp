#include "core/io/checksum.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/io/files.h"

namespace pptrain::io {
namespace {

std::string to_hex(const XXH128_hash_t hash) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, hash);
  constexpr char digits[] = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : canonical.digest) {
    text += digits[byte >> 4];
    text += digits[byte & 15];
  }
  return text;
}

}  // namespace

struct Checksum::State {
  XXH3_state_t xxh;
};

Checksum::Checksum() : state_(std::make_unique<State>()) {
  XXH3_128bits_reset(&state_->xxh);
}
Checksum::~Checksum() = default;

void Checksum::add(std::span<const std::byte> bytes) {
  XXH3_128bits_update(&state_->xxh, bytes.data(), bytes.size());
}

std::string Checksum::hex() const {
  return to_hex(XXH3_128bits_digest(&state_->xxh));
}

std::string checksum_hex(std::span<const std::byte> bytes) {
  return to_hex(XXH3_128bits(bytes.data(), bytes.size()));
}

std::string file_checksum(const std::filesystem::path& path) {
  const RegularFile file(path);
  Checksum checksum;
  file.read_blocks(file.size(), [&](std::span<const std::byte> block) { checksum.add(block); });
  return checksum.hex();
}

}  // namespace pptrain::io

// XXH3, 128 bits (Yann Collet's xxHash): tells damage, not malice; as fast as memory.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

namespace pptrain::io {

// Checksum of bytes that come block by block.
class Checksum {
 public:
  Checksum();
  ~Checksum();
  void add(std::span<const std::byte> bytes);
  // 32 hexadecimal digits, as `xxh128sum` prints them.
  std::string hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string checksum_hex(std::span<const std::byte> bytes);

// Checksum of a whole file, read block by block. Throws Error with its path if it cannot be read.
std::string file_checksum(const std::filesystem::path& path);

}  // namespace pptrain::io

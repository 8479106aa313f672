#include "core/io/copy_file.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <system_error>

#include "core/io/checksum.h"
#include "core/io/files.h"

namespace pptrain::io {
namespace {

constexpr uint64_t piece_bytes = uint64_t{1} << 20;

// Hands the first `end` bytes to `take`, piece by piece.
template <typename Take>
void read_pieces(const RegularFile& file, uint64_t end, const Take& take) {
  const auto buffer = std::make_unique_for_overwrite<std::byte[]>(std::min(end, piece_bytes));
  for (uint64_t at = 0; at < end; at += piece_bytes) {
    const std::span piece(buffer.get(), std::min(piece_bytes, end - at));
    file.read(at, piece);
    take(std::span<const std::byte>(piece));
  }
}

}  // namespace

void copy_file(const std::filesystem::path& source, const std::filesystem::path& target, uint64_t bytes) {
  const RegularFile from(source);
  std::error_code error;
  std::filesystem::create_directories(target.parent_path(), error);
  if (error) throw file_error("cannot create the folder", target.parent_path(), error.value());
  OutputFile to(target);
  read_pieces(from, std::min(bytes, from.size()), [&](std::span<const std::byte> piece) { to.write(piece); });
  to.sync_and_close();
}

std::string file_checksum(const std::filesystem::path& path) {
  const RegularFile file(path);
  Checksum checksum;
  read_pieces(file, file.size(), [&](std::span<const std::byte> piece) { checksum.add(piece); });
  return checksum.hex();
}

}  // namespace pptrain::io

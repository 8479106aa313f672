#include "core/data/inspect.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/data/npy_header.h"
#include "core/io/checksum.h"
#include "core/io/files.h"

namespace pptrain::data {

static_assert(std::endian::native == std::endian::little, "fingerprints are of little-endian lengths");

std::vector<Place> places_of(uint64_t size, uint64_t files) {
  constexpr uint64_t all_pieces = 24;
  constexpr uint64_t piece = 16 << 10;
  const uint64_t pieces = std::max<uint64_t>(2, all_pieces / std::max<uint64_t>(1, files));
  std::vector<Place> places;
  if (size <= pieces * piece) {
    for (uint64_t offset = 0; offset < size; offset += piece)
      places.push_back({offset, std::min(piece, size - offset)});
    return places;
  }
  // The division comes first, so that nothing overflows; the last piece ends with the file.
  const uint64_t step = (size - piece) / (pieces - 1);
  for (uint64_t i = 0; i + 1 < pieces; ++i) places.push_back({i * step, piece});
  places.push_back({size - piece, piece});
  return places;
}

namespace {

// Calls `look` with the bytes at each place of a file, which is one of `files`, and their offset.
template <typename Look>
void each_place(const io::RegularFile& file, size_t files, const Look& look) {
  std::vector<std::byte> bytes;
  for (const Place& place : places_of(file.size(), files)) {
    bytes.resize(place.bytes);
    file.read(place.offset, bytes);
    look(bytes, place.offset);
  }
}

void check_text(const io::RegularFile& file, size_t files) {
  each_place(file, files, [&](const std::vector<std::byte>& bytes, uint64_t offset) {
    const auto zero = std::ranges::find(bytes, std::byte{0});
    if (zero == bytes.end()) return;
    const std::string path = file.path().string();
    if (has_llmc_header(file)) {
      throw Error(fmt::format(
          "'{}' has llm.c's header, but data.format = \"text\": is it data.format = \"llmc\"?", path));
    }
    throw Error(
        fmt::format("'{}': byte {} is 0, which no text has, but data.format = \"text\": is it a file of "
                    "token ids (data.format = \"bin\"), or UTF-16 (save it as UTF-8)?",
                    path, offset + static_cast<uint64_t>(zero - bytes.begin())));
  });
}

void check_headerless(const io::RegularFile& file) {
  if (has_npy_header(file)) {
    throw Error(fmt::format(
        "'{}' has NumPy's header, whose bytes would be taken for tokens: is it data.format = \"npy\"?",
        file.path().string()));
  }
  if (!has_llmc_header(file)) return;
  throw Error(fmt::format(
      "'{}' has llm.c's header, whose bytes would be taken for tokens: is it data.format = \"llmc\"?",
      file.path().string()));
}

// read() refuses ids outside of the vocabulary.
void check_ids(const TokenDataset& dataset) {
  std::vector<int64_t> ids;
  for (const Place& place : places_of(static_cast<uint64_t>(dataset.size()))) {
    ids.resize(place.bytes);
    dataset.read(static_cast<int64_t>(place.offset), ids);
  }
}

}  // namespace

std::string fingerprint(std::span<const std::filesystem::path> files) {
  io::Checksum checksum;
  for (const std::filesystem::path& path : files) {
    const io::RegularFile file(path);
    const uint64_t size = file.size();
    checksum.add(std::as_bytes(std::span(&size, 1)));
    each_place(file, files.size(),
               [&](const std::vector<std::byte>& bytes, uint64_t /*offset*/) { checksum.add(bytes); });
  }
  return checksum.hex();
}

void inspect(const Source& source, int64_t vocab_size) {
  const std::vector<std::filesystem::path> files = token_files(source);
  for (const std::filesystem::path& path : files) {
    const io::RegularFile file(path);
    if (source.format == Format::text) check_text(file, files.size());
    if (source.format == Format::bin) check_headerless(file);
  }
  check_ids(TokenDataset(source, vocab_size));
}

bool looks_like_uint32(const Source& source) {
  constexpr int64_t enough = 32;  // ids, so that it is no chance
  if (source.format != Format::bin || source.token_bytes != 2) return false;
  int64_t low = 0, high = 0;  // halves of words of 4 bytes that are not 0
  const std::vector<std::filesystem::path> files = token_files(source);
  for (const std::filesystem::path& path : files) {
    each_place(io::RegularFile(path), files.size(),
               [&](const std::vector<std::byte>& bytes, uint64_t offset) {
                 const auto is_set = [&](size_t at) {
                   return bytes[at] != std::byte{0} || bytes[at + 1] != std::byte{0};
                 };
                 for (size_t at = (4 - offset % 4) % 4; at + 4 <= bytes.size(); at += 4) {
                   low += is_set(at) ? 1 : 0;
                   high += is_set(at + 2) ? 1 : 0;
                 }
               });
  }
  return high == 0 && low >= enough;
}

}  // namespace pptrain::data

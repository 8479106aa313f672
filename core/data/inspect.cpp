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
#include "core/data/documents.h"
#include "core/data/npy_header.h"
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

namespace {

void check_text(const io::RegularFile& file, const std::vector<Place>& places) {
  std::vector<std::byte> bytes;
  for (const Place& place : places) {
    bytes.resize(place.bytes);
    file.read(place.offset, bytes);
    const auto zero = std::ranges::find(bytes, std::byte{0});
    if (zero == bytes.end()) continue;
    const std::string path = file.path().string();
    if (has_llmc_header(file)) {
      throw Error(fmt::format(
          "'{}' has llm.c's header, but data.format = \"text\": is it data.format = \"llmc\"?", path));
    }
    throw Error(
        fmt::format("'{}': byte {} is 0, which no text has, but data.format = \"text\": is it a file of "
                    "token ids (data.format = \"bin\"), or UTF-16 (save it as UTF-8)?",
                    path, place.offset + static_cast<uint64_t>(zero - bytes.begin())));
  }
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

// Of the places' words of 4 bytes, how many have a low half, and how many a high one.
struct Halves {
  int64_t low = 0, high = 0;
};

Halves halves_of(const io::RegularFile& file, const std::vector<Place>& places) {
  Halves halves;
  std::vector<std::byte> bytes;
  for (const Place& place : places) {
    bytes.resize(place.bytes);
    file.read(place.offset, bytes);
    const auto is_set = [&](size_t at) { return bytes[at] != std::byte{0} || bytes[at + 1] != std::byte{0}; };
    for (size_t at = (4 - place.offset % 4) % 4; at + 4 <= bytes.size(); at += 4) {
      halves.low += is_set(at) ? 1 : 0;
      halves.high += is_set(at + 2) ? 1 : 0;
    }
  }
  return halves;
}

}  // namespace

void inspect(const Source& source, int64_t vocab_size) {
  const std::vector<std::filesystem::path> files = token_files(source);
  for (const std::filesystem::path& path : files) {
    const io::RegularFile file(path);
    if (source.format == Format::text) check_text(file, places_of(file.size(), files.size()));
    if (source.format == Format::bin) check_headerless(file);
  }
  check_ids(TokenDataset(source, vocab_size));
}

bool looks_like_uint32(const Source& source) {
  constexpr int64_t enough = 32;  // ids, so that it is no chance
  if (source.format != Format::bin || source.token_bytes != 2) return false;
  Halves all;
  const std::vector<std::filesystem::path> files = token_files(source);
  for (const std::filesystem::path& path : files) {
    const io::RegularFile file(path);
    const Halves own = halves_of(file, places_of(file.size(), files.size()));
    all.low += own.low;
    all.high += own.high;
  }
  return all.high == 0 && all.low >= enough;
}

}  // namespace pptrain::data

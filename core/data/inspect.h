// Checks before the first step, at a few places of files: whether two hold the same data, and whether they
// hold what the job says.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "core/data/token_dataset.h"

namespace pptrain::data {

// Parts of a file that are looked at if reading all of it would take too long.
struct Place {
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

// For a file of `size` bytes up to 384 KiB: all of it, in pieces. For a longer one: 24 pieces of 16 KiB,
// head, tail and evenly apart. If the file is one of `files`, as many times fewer, but head and tail at
// least.
std::vector<Place> places_of(uint64_t size, uint64_t files = 1);

// 32 hexadecimal digits, of the lengths of files and of their bytes at 24 places (places_of), in this order.
// It tells other lengths and other texts, but not every change of a few bytes within a long file. Names and
// paths do not count. Throws Error with the path and the reason if a file cannot be read, or is no regular
// file.
std::string fingerprint(std::span<const std::filesystem::path> files);

// Opens the source as TokenDataset does, and looks at a few places of each file (places_of). Throws Error
// that names file and byte or token. It refuses what TokenDataset refuses; a zero byte in a text, which has
// none in any encoding that is read as bytes; a headerless file that begins with llm.c's header; an id of at
// least `vocab_size`.
void inspect(const Source& source, int64_t vocab_size);

// Is this a headerless source of uint16 in which, at the few places looked at in each file, every second id
// is 0 and the others are not? Then it is most likely one of uint32.
bool looks_like_uint32(const Source& source);

}  // namespace pptrain::data

// Which parts of a file are looked at where reading all of it would take too long.
#pragma once

#include <cstdint>
#include <vector>

namespace pptrain::data {

struct Place {
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

// Of a file of `size` bytes: all of it, in pieces, up to 384 KiB; of a longer one 24 pieces of 16 KiB, head,
// tail and evenly apart. Where the file is one of `files`, as many fewer, but head and tail at least.
std::vector<Place> places_of(uint64_t size, uint64_t files = 1);

}  // namespace pptrain::data

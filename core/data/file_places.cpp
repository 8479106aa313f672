#include "core/data/file_places.h"

#include <algorithm>

namespace pptrain::data {

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

}  // namespace pptrain::data

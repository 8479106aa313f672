// Memory that a sum over ranks takes beside its tensors.
#pragma once

#include <algorithm>
#include <cstdint>

namespace pptrain::comm {

// Bytes of the scratch of a sum over so many ranks whose tensor is larger than that: 1 MiB for each rank, so
// that messages stay long enough, and at most 16 MiB. The thread that runs a communicator's sums keeps it.
constexpr int64_t most_sum_scratch(int ranks) {
  return std::min<int64_t>(ranks, 16) << 20;
}

}  // namespace pptrain::comm

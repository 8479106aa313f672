// The rounds in which the interleaved schedules take their microbatches.
#pragma once

#include <algorithm>

namespace pptrain::schedule {

// Microbatches of a round: m over as many rounds as fit p; 0 if m does not divide so.
inline int microbatches_per_round(int ranks, int microbatches) {
  const int rounds = std::max(1, microbatches / ranks);
  return microbatches % rounds == 0 ? microbatches / rounds : 0;
}

}  // namespace pptrain::schedule

// What a rank of a ring computes at each step, and which of the results belong to others.
#pragma once

#include <vector>

#include "core/tokens/context_split.h"
#include "core/tokens/segments.h"

namespace pptrain::context {

// At step s, rank r has the keys of rank r - s.
struct RingPlan {
  int rank = 0;
  int ranks = 1;
  // [step]: this rank's queries with the keys that are there. As many steps as the farthest keys that any
  // rank needs take, the same number on all ranks.
  std::vector<std::vector<tokens::AttentionBlock>> steps;
  // [step]: whether the rank that has this rank's keys then computes with them.
  std::vector<bool> used;

  int steps_count() const { return static_cast<int>(steps.size()); }
  int owner(int step) const { return (rank - step + ranks) % ranks; }  // of the keys that are here
  int user(int step) const { return (rank + step) % ranks; }           // of this rank's keys
};

RingPlan plan_ring(const tokens::ContextSplit& split, const tokens::Segments& segments);

}  // namespace pptrain::context

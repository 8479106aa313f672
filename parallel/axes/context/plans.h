// The work of each context-parallel rank: pure functions, by which every rank derives the same without a
// message.
#pragma once

#include <cstdint>
#include <vector>

#include "core/attention/attention.h"
#include "core/data/tokens/context_split.h"
#include "core/data/tokens/segments.h"

namespace pptrain::context {

// Throws Error unless the call's split is of `ranks` ranks, as rank `rank` sees it, and q has a row for each
// of that rank's tokens.
void check_split(const attention::AttentionCall& call, int rank, int ranks);

// The work of a rank of a ring at each step, and which of the results belong to others. At step s, rank r has
// the keys of rank r - s.
struct RingPlan {
  int rank = 0;
  int ranks = 1;
  // [step]: this rank's queries with the keys of that step. There are as many steps as the farthest keys that
  // any rank needs take, the same number on all ranks.
  std::vector<std::vector<tokens::AttentionBlock>> steps;
  // [step]: whether the rank that has this rank's keys then computes with them.
  std::vector<bool> used;

  int steps_count() const { return static_cast<int>(steps.size()); }
  int owner(int step) const { return (rank - step + ranks) % ranks; }  // of the keys that are here
  int user(int step) const { return (rank + step) % ranks; }           // of this rank's keys
};

// window: 0 for none.
RingPlan plan_ring(const tokens::ContextSplit& split, const tokens::Segments& segments, int64_t window = 0);

// Under Ulysses each rank computes heads / ranks query heads in a row. Returns for each rank the key-value
// heads for them: as many on every rank, and each serves as many query heads in a row. A key-value head that
// several ranks need is in several lists. If a rank's query heads do not fit evenly to key-value heads, it
// gets one for each query head, some of them twice. Throws Error unless `ranks` divides `heads`. kv_heads
// divides heads.
std::vector<std::vector<int64_t>> share_kv_heads(int64_t heads, int64_t kv_heads, int ranks);

}  // namespace pptrain::context

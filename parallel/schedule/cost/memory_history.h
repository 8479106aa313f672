// The bytes that a rank holds at each moment of its list, and the moments at which it holds each
// microbatch's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "parallel/schedule/cost/memory.h"

namespace pptrain::schedule {

struct MemoryHistory {
  // The rank holds these bytes of one microbatch on one stage from moment `begin` to one before `end`.
  struct Holding {
    int64_t of(const StageBytes& bytes) const {
      return held == nullptr ? bytes.workspace.of(pass) : bytes.*held;
    }

    int64_t StageBytes::*held;  // null: the workspace of `pass`
    ActionKind pass;
    size_t begin;
    size_t end;
  };
  std::vector<int64_t> totals;             // [moment] bytes of the rank
  std::vector<std::vector<Holding>> uses;  // [cell] of what differs with recompute
};

// The history of one rank, as peak_bytes() walks its list; the peak is the largest total. Throws Error as
// peak_bytes().
MemoryHistory memory_history(const Schedule& lowered, std::span<const StageBytes> bytes, int rank);

}  // namespace pptrain::schedule

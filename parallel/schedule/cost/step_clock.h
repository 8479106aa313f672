// The end of a step whose microbatches differ in size. Whole numbers: the same on every machine, and small
// enough for thousands of steps a second (core/data/balance.h).
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "parallel/schedule/per_pass.h"
#include "parallel/schedule/schedule.h"

namespace pptrain::schedule {

// Ticks of a pass or a transfer of one microbatch.
struct SizedCost {
  int64_t fixed = 0;
  int64_t token = 0;   // for each token
  int64_t square = 0;  // for each squared length of a document, which attention takes

  int64_t of(int64_t tokens, int64_t squares) const { return fixed + token * tokens + square * squares; }
};

// With sequence slices: of one slice, the mean of the microbatch's slices.
struct StageSizedCosts {
  PerPass<SizedCost> passes;
  SizedCost transfer;       // to the next stage, or from it
  SizedCost head_transfer;  // that S, and the last stage's B or I, take from another rank
};

using SizedCosts = std::vector<StageSizedCosts>;  // [stage]

// The last rank's end, in ticks, by each whole microbatch's tokens and the sum of its documents' squared
// lengths. It counts passes and transfers as simulate() does, without exchanges that overlap with passes; the
// halves of an overlapped pair count one after the other. `schedule`: lowered. Throws Error if it deadlocks,
// or the costs do not fit its stages.
std::function<int64_t(std::span<const int64_t> tokens, std::span<const int64_t> squares)> step_clock(
    const Schedule& schedule, const SizedCosts& costs);

}  // namespace pptrain::schedule

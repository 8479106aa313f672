// The choice of how much each microbatch recomputes where memory binds.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "parallel/schedule/cost/memory.h"
#include "parallel/schedule/schedule.h"

namespace pptrain::schedule {

// How much each microbatch recomputes on each stage of the rank, as a level from 0, the least: by cell, 0 for
// those of other ranks. All begin with their stage's level in `levels`; then microbatches get lower ones as
// long as what the rank's passes hold at most (peak_bytes) is no more than `room` bytes, and no change of one
// microbatch to a lower level that saves time is left that fits. Changes are tried in the order of the
// seconds that they save for a byte and a moment that it is held, the mean of a stage; those of one stage
// from the last microbatch to the first: the last ones' backward passes end the step, and of equal
// microbatches in 1f1b as many as possible change. `bytes`: [level], each as peak_bytes takes them.
// `seconds`: [level][stage], of B. Where `levels` have no room all keep them. n log n of the list's length.
// The ideas are DynaPipe's (arXiv 2311.10418), which chooses by microbatch, and AdaPipe's (ASPLOS 2024),
// which chooses by stage.
std::vector<int> recompute_levels(const Schedule& lowered, int rank,
                                  std::span<const std::vector<StageBytes>> bytes,
                                  std::span<const std::vector<double>> seconds, std::span<const int> levels,
                                  int64_t room);

}  // namespace pptrain::schedule

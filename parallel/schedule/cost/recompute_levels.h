// Chooses how much each microbatch recomputes if memory is short.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "parallel/schedule/cost/memory.h"
#include "parallel/schedule/schedule.h"

namespace pptrain::schedule {

// How much each microbatch recomputes on each stage of the rank, as a level from 0, the least: by cell, 0 for
// those of other ranks. Every microbatch starts at its stage's level in `levels`. Levels are lowered one by
// one until no further change both saves time and keeps the rank's peak (peak_bytes) within `room` bytes.
// Changes are tried in the order of the seconds that they save for a byte and a moment that it is held, the
// mean of a stage. Changes of one stage go from the last microbatch to the first: the last ones' backward
// passes end the step, and of equal microbatches in 1f1b as many as possible change. `bytes`: [level], each
// as peak_bytes takes them. `seconds`: [level][stage], of B. If `levels` have no room all keep them. n log n
// of the list's length. The ideas are DynaPipe's (arXiv 2311.10418), which chooses by microbatch, and
// AdaPipe's (ASPLOS 2024), which chooses by stage.
std::vector<int> recompute_levels(const Schedule& lowered, int rank,
                                  std::span<const std::vector<StageBytes>> bytes,
                                  std::span<const std::vector<double>> seconds, std::span<const int> levels,
                                  int64_t room);

}  // namespace pptrain::schedule

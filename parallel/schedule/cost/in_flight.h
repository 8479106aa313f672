// What a rank holds at most while it walks its list: known before anything runs.
#pragma once

#include <vector>

#include "parallel/schedule/schedule.h"

namespace pptrain::schedule {

// Counted in stage-microbatches: one microbatch's records of one stage. Divided by stages_per_rank, it is in
// microbatches of all the layers of a rank.
struct InFlight {
  int activations = 0;      // F done, B or I not yet: full records
  int weight_operands = 0;  // I done, W not yet: what I leaves for W
  int held = 0;             // F done, B or W not yet: the two together at their worst
  int receive_buffers = 0;  // posted, and the action that uses them not done; 0 without communication
};

// The peaks of each rank. An action counts while it runs: a forward's records before the backward that
// follows it.
std::vector<InFlight> in_flight(const Schedule& schedule);

}  // namespace pptrain::schedule

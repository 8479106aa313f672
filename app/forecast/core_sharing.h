// CPU ranks that share cores: how much longer a step takes if their threads outnumber the cores.
#pragma once

#include <algorithm>
#include <cstdint>

#include "parallel/mesh/device_mesh.h"
#include "parallel/schedule/cost/simulate.h"
#include "parallel/schedule/schedule.h"

namespace pptrain::app {

// Consecutive ranks form sets of equal size, such as hosts. The ranks of a set share its cores.
struct CoreSharing {
  double cores = 0;       // of a set; 0: each thread has a core of its own
  int ranks_per_set = 0;  // 0: all ranks are in one set

  int ranks(int world) const { return ranks_per_set > 0 ? std::min(ranks_per_set, world) : world; }
  // Threads of a set per core, at least 1: the factor by which simultaneous work of all ranks slows down.
  double load(int world, int64_t threads) const;
};

// Replays a pipeline's simulation, which gives each thread a core, on shared cores. While more threads
// compute than a set has cores, they take turns and the interval lasts longer. Waiting threads need no core.
schedule::Simulation on_shared_cores(const schedule::Schedule& schedule, schedule::Simulation alone,
                                     const mesh::MeshShape& mesh, int64_t threads,
                                     const CoreSharing& sharing);

}  // namespace pptrain::app

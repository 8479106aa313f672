// CPU ranks that share cores: how much longer a step takes where not each of their threads has one of its
// own.
#pragma once

#include <algorithm>
#include <cstdint>

#include "parallel/mesh/device_mesh.h"
#include "parallel/schedule/cost/simulate.h"
#include "parallel/schedule/schedule.h"

namespace pptrain::app {

// Ranks follow each other in sets of equal size, such as the hosts'; those of a set share its cores.
struct CoreSharing {
  double cores = 0;       // of a set; 0: each thread has a core of its own
  int ranks_per_set = 0;  // 0: all ranks are in one set

  int ranks(int world) const { return ranks_per_set > 0 ? std::min(ranks_per_set, world) : world; }
  // Threads of a set for each core, at least 1: by so much all take longer what they do at the same time.
  double load(int world, int64_t threads) const;
};

// The step of a pipeline, simulated with a core for each thread, on shared cores: while more threads compute
// than a set has cores, these take turns, and the moment lasts longer. What waits lets the others run.
schedule::Simulation on_shared_cores(const schedule::Schedule& schedule, schedule::Simulation alone,
                                     const mesh::MeshShape& mesh, int64_t threads,
                                     const CoreSharing& sharing);

}  // namespace pptrain::app

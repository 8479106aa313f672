// Which rank it was.
#pragma once

#include <vector>

#include "parallel/comm/communicator.h"

namespace pptrain::checkpoint {

// The lowest rank that says true, the same on all; -1 if none does. Collective.
inline int first_rank(comm::Communicator& world, bool value) {
  if (!comm::any(world, value)) return -1;
  std::vector<double> flags(static_cast<size_t>(world.size()), 0);
  flags[static_cast<size_t>(world.rank())] = value ? 1 : 0;
  flags = comm::all_reduce_sum(world, flags);
  for (size_t rank = 0; rank < flags.size(); ++rank) {
    if (flags[rank] != 0) return static_cast<int>(rank);
  }
  return -1;
}

}  // namespace pptrain::checkpoint

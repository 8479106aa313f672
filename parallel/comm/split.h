// Who goes where in a split, for transports that make their groups themselves.
#pragma once

#include <vector>

#include "parallel/comm/communicator.h"

namespace pptrain::comm {

// Ranks of `comm` with this rank's color, ordered by key, then rank. Collective over `comm` (CPU tensors).
std::vector<int> ranks_of_color(Communicator& comm, int color, int key);

}  // namespace pptrain::comm

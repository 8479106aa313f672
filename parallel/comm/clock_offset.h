// One clock for all ranks.
#pragma once

#include <chrono>

#include "parallel/comm/communicator.h"

namespace pptrain::comm {

// What this rank adds to its std::chrono::steady_clock to get rank 0's. Exactly 0 on rank 0's host; elsewhere
// from the quickest of some round trips, and wrong by half of it at most. Clocks of hosts drift apart by some
// microseconds a second, so ask again from time to time. Collective.
std::chrono::nanoseconds clock_offset(Communicator& comm);
// The same where each rank says whether it has rank 0's clock.
std::chrono::nanoseconds clock_offset(Communicator& comm, bool same_clock);

}  // namespace pptrain::comm

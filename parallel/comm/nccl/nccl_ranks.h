// What the ranks of a group tell each other before NCCL knows them.
#pragma once

#include <c10/core/Device.h>

#include <vector>

#include "parallel/comm/communicator.h"

namespace pptrain::comm {

// The job's rank of each rank of `host`, of which this one's is `mine`. Collective.
std::vector<int> ranks_of_job(Communicator& host, int mine);

// Throws UsageError, on all ranks alike, where two ranks have one GPU or the environment of one would take
// away what pptrain asks of NCCL. Collective.
void check_ranks(Communicator& host, c10::Device device);

}  // namespace pptrain::comm

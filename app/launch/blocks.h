// Fewer processes than ranks: each has a block of the mesh's ranks, as threads, which meet over TCP.
#pragma once

#include "app/launch/rank_in_world.h"
#include "app/plan/plan.h"
#include "parallel/comm/bootstrap.h"
#include "parallel/comm/communicator.h"

namespace pptrain::app {

// Runs this process's block of ranks, and returns the exit code. Refuses jobs on GPUs. Collective over the
// processes.
int run_blocks(comm::Communicator& processes, const comm::Launch& launch, const Plan& plan,
               const RankBody& body);

}  // namespace pptrain::app

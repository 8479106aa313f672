// Runs a job on one rank of a world that exists, and reports how it ends.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "app/plan/plan.h"
#include "app/plan/run_context.h"
#include "parallel/comm/bootstrap.h"
#include "parallel/comm/communicator.h"
#include "parallel/comm/liveness/heartbeat.h"

namespace pptrain::app {

using RankBody = std::function<int(RunContext&)>;

// What a rank has in its process.
struct RankOptions {
  int local_rank = 0;  // chooses the GPU
  int ranks_here = 1;  // ranks of this process; each runs in a thread of its own
  // All ranks of the world are threads of this process: one plan serves them, and what they throw is the
  // caller's.
  bool threads_alone = false;
  // Launched processes have several ranks each, so none may end by itself.
  bool in_blocks = false;
  comm::Heartbeat* heartbeat = nullptr;  // may be null
  comm::Activity* activity = nullptr;    // may be null
  // What every rank does now, for reports, if there is no heartbeat to ask. May be empty.
  std::function<std::vector<comm::RankState>()> states = {};
};

// Runs `body` as this thread's rank of `world`, under inference mode and with run.threads CPU threads.
// Several plans can use one world, one after the other. Returns the exit code: body's, or 2 after rank 0 has
// printed what is wrong with the job or its GPUs (threads alone throw it as UsageError). Throws Error that
// names the rank if it fails. Collective.
int run_in_world(comm::Communicator& world, const Plan& plan, const RankBody& body,
                 const RankOptions& options);

// Starts to watch the ranks of `world`; null if rank 0's job turns that off. address: gives the one of this
// rank's transport. Collective.
std::unique_ptr<comm::Heartbeat> start_heartbeat(comm::Communicator& world, const comm::Launch& launch,
                                                 const Plan& plan, comm::Activity& activity,
                                                 std::function<std::string()> address);

// Sets what all ranks of this process compute with. Called before any rank starts.
void set_numerics(const Plan& plan);

}  // namespace pptrain::app

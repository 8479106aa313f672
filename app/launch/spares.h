// More processes than ranks: the last ones are spare, and wait for the end of the run.
#pragma once

#include <functional>
#include <memory>

#include "app/plan/plan.h"
#include "parallel/comm/bootstrap.h"
#include "parallel/comm/communicator.h"

namespace pptrain::app {

// The processes with ranks; null if all have one. Collective over these.
std::unique_ptr<comm::Communicator> without_spares(comm::Communicator& processes, const Plan& plan);

// Rank 0 tells the spare processes its exit code. processes: all, of which the first `ranks` have one.
void tell_spares(comm::Communicator& processes, int ranks, int code);

// Waits for the end of the run, and returns rank 0's exit code. A launcher that starts all processes again
// counts on the spare ones too, so they must not end before. Exception: an agent asks for an end, and may
// start other ranks.
int await_end(comm::Communicator& processes, const comm::Launch& launch,
              const std::function<bool()>& stop_requested);

}  // namespace pptrain::app

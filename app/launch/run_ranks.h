// Starts the ranks of a job, and ends them together.
#pragma once

#include <functional>

#include "app/launch/rank_in_world.h"
#include "app/plan/plan.h"

namespace pptrain::app {

// Starts this process's ranks as the launcher (or its absence) says, and runs `body` on each, under inference
// mode and with run.threads CPU threads. Returns the exit code of rank 0's body (under a launcher, of this
// process's rank).
//
// `load` makes the plan. Under a launcher, ranks tell each other the errors of `load`, and contradictions
// between launch and plan; rank 0 prints them, and all ranks return 2 (1 if it is no UsageError). Without a
// launcher `load`'s error is thrown. Throws UsageError if the launcher's variables make no sense or no
// transport connects the processes, and Error that names the rank if a rank fails.
//
// Under a launcher heartbeats watch the ranks from the moment when all have come until the world is gone
// (distributed.heartbeat_s). Before that, `stop_requested` ends a process that waits for the others with exit
// code 3.
int run_ranks(const std::function<Plan()>& load, const RankBody& body,
              const std::function<bool()>& stop_requested = {});
int run_ranks(const Plan& plan, const RankBody& body);

}  // namespace pptrain::app

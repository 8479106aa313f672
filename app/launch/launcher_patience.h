// What launchers make of their ranks' ends: how long they wait for them, and which exit codes they take as an
// end.
#pragma once

#include <stdlib.h>

#include <chrono>
#include <optional>
#include <string>

#include "parallel/comm/bootstrap.h"

namespace pptrain::app {

struct Patience {
  // From the first signal to SIGKILL; nothing if the launcher waits as long as it takes.
  std::optional<std::chrono::milliseconds> time;
  // A signal that may announce SIGTERM, which then comes when half of the time is over; or it means nothing.
  std::optional<int> notice;
  // What a user should know before the first Ctrl-C, in one line; may be empty.
  std::string advice;
};

// From the launchers' defaults, and Open MPI's parameters in the environment.
Patience patience_of(const comm::Launch& launch, const comm::GetEnv& environment = ::getenv);

// The exit code of an end that the same command would only repeat: a run that a user has stopped, has
// diverged or has a bad job. If torchrun has restarts left (TORCHELASTIC_MAX_RESTARTS), it starts the ranks
// again after every code but 0. Then this is 0.
int final_exit(int code, const comm::GetEnv& environment = ::getenv);

}  // namespace pptrain::app

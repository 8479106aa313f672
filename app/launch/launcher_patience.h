// How long a launcher waits for its ranks after it has asked them to end.
#pragma once

#include <stdlib.h>

#include <chrono>
#include <optional>
#include <string>

#include "parallel/comm/bootstrap.h"

namespace pptrain::app {

struct Patience {
  // From the first signal to SIGKILL; nothing where the launcher waits as long as it takes.
  std::optional<std::chrono::milliseconds> time;
  // A signal that comes ahead of SIGTERM, when half of the time is over; or it means nothing.
  std::optional<int> notice;
  // What a user should know before the first Ctrl-C, in one line; empty where there is nothing to know.
  std::string advice;
};

// By the defaults of the launchers, and by what Open MPI's parameters in the environment say.
Patience patience_of(const comm::Launch& launch, const comm::GetEnv& environment = ::getenv);

}  // namespace pptrain::app

// The launched processes, from the start of this one until all have come and agreed that the job can start.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "app/plan/plan.h"
#include "core/base/process.h"
#include "parallel/comm/bootstrap.h"
#include "parallel/comm/communicator.h"
#include "parallel/comm/liveness/start_watch.h"

namespace pptrain::app {

// Why this process cannot start, and the matching exit code.
struct StartFault {
  std::string text;  // "" for none
  int code = exit_usage;
};

class Gathering {
 public:
  // stop_requested: ends the wait for the others with StoppedAtStart; may be empty. `fault` must outlive it.
  Gathering(comm::Launch launch, const std::optional<Plan>& plan, const StartFault& fault,
            const std::function<bool()>& stop_requested);

  // Connects the ranks, even if this rank has a fault, to report it to them. Null if the others cannot be
  // reached; then this rank has printed its fault.
  std::unique_ptr<comm::Communicator> meet();
  // 0 if no rank has a fault; otherwise the exit code, after rank 0 has printed the fault. Collective.
  int agree(comm::Communicator& world);

  const comm::Launch& launch() const { return launch_; }
  // The address of this rank's transport. MPI does not tell it: then "" unless the user has named an address.
  std::string address_of_ranks() const;

 private:
  comm::Launch launch_;
  const StartFault& fault_;
  std::chrono::milliseconds timeout_;
  std::unique_ptr<comm::StartWatch> watch_;
};

// Lets this process end with the agent that started it. Otherwise it would go on where no one restarts it,
// beside those that replace it.
void end_with_agent();

// Ranks that await rank 0's choices take them. False if one can't, after rank 0 has said so. Collective.
bool share_choices(comm::Communicator& world, Plan& plan);

}  // namespace pptrain::app

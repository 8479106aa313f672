// What one rank knows of the run it is part of, handed down instead of globals.
#pragma once

#include <c10/core/Device.h>

#include <functional>

#include "app/plan/plan.h"
#include "parallel/comm/communicator.h"
#include "parallel/mesh/device_mesh.h"

namespace pptrain::app {

struct RunContext {
  const Plan& plan;
  mesh::DeviceMesh& mesh;
  at::Device device;
  const config::JobConfig& job = plan.job;
  const models::ModelConfig& model = plan.model;

  bool root() const { return mesh.rank() == 0; }  // the one rank that prints and writes metrics
};

// Starts this process's ranks as the launcher (or its absence) says, and runs `body` on each, under inference
// mode and with run.threads CPU threads. Returns the exit code of rank 0's body (of this process's rank,
// under a launcher).
//
// `load` makes the plan. Under a launcher, ranks tell each other the UsageErrors that `load` threw, and where
// the launch contradicts the plan; rank 0 prints them, and all ranks return 2. Without a launcher they are
// thrown. Throws UsageError where the launcher's variables make no sense or no transport connects the
// processes, and Error that names the rank where a rank fails.
//
// `stopped` is asked while processes look for each other: once it is true, that ends, and run_ranks
// returns 3.
int run_ranks(const std::function<Plan()>& load, const std::function<int(RunContext&)>& body,
              const std::function<bool()>& stopped = {});
int run_ranks(const Plan& plan, const std::function<int(RunContext&)>& body);

// The same on a world that is there already, by this process's rank in it: several plans can share one world.
int run_in_world(comm::Communicator& world, int local_rank, const Plan& plan,
                 const std::function<int(RunContext&)>& body);

}  // namespace pptrain::app

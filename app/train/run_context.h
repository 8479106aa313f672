// What one rank knows of the run it is part of, handed down instead of globals.
#pragma once

#include <c10/core/Device.h>

#include <functional>

#include "core/config/job_config.h"
#include "models/model_config.h"
#include "parallel/comm/communicator.h"
#include "parallel/mesh/device_mesh.h"

namespace pptrain::app {

struct RunContext {
  const config::JobConfig& job;
  const models::ModelConfig& model;
  mesh::DeviceMesh& mesh;
  at::Device device;

  bool root() const { return mesh.rank() == 0; }  // the one rank that prints and writes metrics
};

// Starts this process's ranks as the launcher (or its absence) says, and runs `body` on each, under inference
// mode and with run.threads CPU threads. Returns the exit code of rank 0's body (of this process's rank,
// under a launcher).
//
// `load` gives the job. Under a launcher, a UsageError of it, or of a launch that contradicts the job, is
// told to all ranks: rank 0 prints what they found, and all return 2. Without a launcher it is thrown. Throws
// UsageError too where the launcher's variables make no sense or no transport connects the processes, and
// Error naming the rank that failed.
int run_ranks(const std::function<config::JobConfig()>& load, const std::function<int(RunContext&)>& body);
int run_ranks(const config::JobConfig& job, const std::function<int(RunContext&)>& body);

// The same on a world that is there already, by this process's rank in it: several jobs can share one world.
int run_in_world(comm::Communicator& world, int local_rank, const config::JobConfig& job,
                 const std::function<int(RunContext&)>& body);

// The mesh that a job asks for.
mesh::MeshShape mesh_shape(const config::JobConfig& job);

}  // namespace pptrain::app

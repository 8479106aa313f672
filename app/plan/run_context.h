// The run as one rank knows it, handed down instead of globals.
#pragma once

#include <c10/core/Device.h>

#include <filesystem>

#include "app/plan/plan.h"
#include "core/base/error.h"
#include "core/base/host_memory.h"
#include "parallel/comm/liveness/heartbeat.h"
#include "parallel/mesh/device_mesh.h"

namespace pptrain::app {

// A UsageError that every rank throws, with the same text, after an exchange of faults: rank 0 prints it
// and all end with 2.
class CommonFault : public UsageError {
 public:
  using UsageError::UsageError;
};

// The job does not fit the hosts that are here; it may fit when more of them are.
class Shortage : public CommonFault {
 public:
  using CommonFault::CommonFault;
};

struct RunContext {
  const Plan& plan;
  mesh::DeviceMesh& mesh;
  at::Device device;
  const config::JobConfig& job = plan.job;
  const models::ModelConfig& model = plan.model;

  // For the reports of failures. Null if no rank waits for another. Ranks that are threads have no heartbeat.
  comm::Activity* activity = nullptr;
  comm::Heartbeat* heartbeat = nullptr;
  std::filesystem::path memory = memory_file_system;  // of this host, for copies of the state
  bool goes_back = false;  // the run has begun in these processes and went back (train.max_rollbacks)
  // Launched processes have several ranks each, so none may end by itself.
  bool shares_process = false;

  bool root() const { return mesh.rank() == 0; }  // the one rank that prints and writes metrics
};

}  // namespace pptrain::app

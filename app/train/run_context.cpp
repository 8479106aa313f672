#include "app/train/run_context.h"

#include <ATen/Parallel.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>
#include <spdlog/fmt/fmt.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "core/base/error.h"
#include "core/kernels/device_name.h"
#include "parallel/comm/bootstrap.h"
#include "parallel/comm/nccl/nccl_communicator.h"
#include "parallel/comm/thread/thread_communicator.h"

namespace pptrain::app {

namespace {

at::Device choose_device(const config::JobConfig& job, int local_rank) {
  if (job.run.device == "cpu") return at::kCPU;
  const int count = kernels::gpu_count();
  if (count == 0) {
    throw UsageError(
        "run.device: \"cuda\" is asked for, but no GPU was found (or this pptrain was built without CUDA). "
        "Use run.device = \"cpu\", or check nvidia-smi and build where nvcc is on PATH.");
  }
  return {at::kCUDA, static_cast<at::DeviceIndex>(local_rank % count)};
}

// Which rank failed, and on which stage; a UsageError stays one.
template <typename Body>
int named(const mesh::MeshShape& shape, int rank, Body&& body) {
  const auto who = [&] {
    if (shape.world_size() == 1) return std::string();
    const int pp = mesh::coordinates(shape, rank)[static_cast<int>(mesh::Axis::pp)];
    return fmt::format("rank {} (pipeline rank {}): ", rank, pp);
  };
  try {
    return body();
  } catch (const PeerFailure&) {
    throw;
  } catch (const UsageError& error) {
    throw UsageError(who() + error.what());
  } catch (const std::exception& error) {
    throw Error(who() + error.what());
  }
}

class RankStart {
 public:
  RankStart(const Plan& plan, const std::function<int(RunContext&)>& body) : plan_(plan), body_(body) {}

  int operator()(comm::Communicator& host, int local_rank, bool use_nccl) const {
    const config::JobConfig& job = plan_.job;
    at::set_num_threads(static_cast<int>(job.run.threads));
    const c10::InferenceMode inference;
    host.set_timeout(std::chrono::milliseconds(static_cast<int64_t>(job.distributed.timeout_s * 1000)));
    return named(plan_.mesh, host.rank(), [&] {
      const at::Device device = choose_device(job, local_rank);
      const c10::OptionalDeviceGuard guard(device.is_cuda() ? std::optional(device) : std::nullopt);
      std::unique_ptr<comm::Communicator> nccl;
      if (use_nccl && device.is_cuda()) nccl = comm::make_nccl(host, device);
      mesh::DeviceMesh mesh(nccl ? *nccl : host, plan_.mesh);
      RunContext context{.plan = plan_, .mesh = mesh, .device = device};
      return body_(context);
    });
  }

 private:
  const Plan& plan_;
  const std::function<int(RunContext&)>& body_;
};

}  // namespace

int run_ranks(const Plan& plan, const std::function<int(RunContext&)>& body) {
  const RankStart start(plan, body);
  const comm::Launch launch = comm::detect_launch();
  if (launch.kind == comm::LaunchKind::threads) {
    std::atomic<int> code = 0;
    comm::run_thread_ranks(plan.mesh.world_size(), [&](comm::Communicator& world) {
      const int result = start(world, world.rank(), /*use_nccl=*/false);
      if (world.rank() == 0) code = result;
    });
    return code;
  }
  mesh::check_world_size(plan.mesh, launch.world_size);  // before any transport is set up
  const std::unique_ptr<comm::Communicator> world = comm::make_world(launch);
  return run_in_world(*world, launch.local_rank, plan, body);
}

int run_in_world(comm::Communicator& world, int local_rank, const Plan& plan,
                 const std::function<int(RunContext&)>& body) {
  const RankStart start(plan, body);
  mesh::check_world_size(plan.mesh, world.size());
  try {
    return start(world, local_rank, /*use_nccl=*/true);
  } catch (const UsageError& error) {
    // As a rule every rank finds the same fault, and rank 0 says it and ends with exit code 2. A fault of
    // this rank's host alone is said here, after rank 0 had the time to.
    if (world.rank() != 0) {
      std::this_thread::sleep_for(std::chrono::seconds(1));
      world.abort(error.what());
    }
    throw;
  } catch (const PeerFailure&) {
    throw;
  } catch (const std::exception& error) {
    world.abort(error.what());
    throw;
  }
}

}  // namespace pptrain::app

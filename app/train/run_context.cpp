#include "app/train/run_context.h"

#include <ATen/Parallel.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>

#include "core/base/error.h"
#include "core/kernels/device_name.h"
#include "parallel/comm/agreement.h"
#include "parallel/comm/bootstrap.h"
#include "parallel/comm/nccl/nccl_communicator.h"
#include "parallel/comm/thread/thread_communicator.h"

namespace pptrain::app {

namespace {

constexpr int usage_exit_code = 2;
constexpr int stopped_exit_code = 3;

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

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

std::chrono::milliseconds timeout_of(const config::JobConfig& job) {
  return milliseconds(job.distributed.timeout_s);
}

// Puts the rank before the message of an error of `body`; a UsageError stays one.
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

  // `world` carries tensors of `device`.
  int operator()(comm::Communicator& world, at::Device device) const {
    at::set_num_threads(static_cast<int>(plan_.job.run.threads));
    const c10::InferenceMode inference;
    const c10::OptionalDeviceGuard guard(device.is_cuda() ? std::optional(device) : std::nullopt);
    world.set_timeout(timeout_of(plan_.job));
    return named(plan_.mesh, world.rank(), [&] {
      mesh::DeviceMesh mesh(world, plan_.mesh);
      RunContext context{.plan = plan_, .mesh = mesh, .device = device};
      return body_(context);
    });
  }

 private:
  const Plan& plan_;
  const std::function<int(RunContext&)>& body_;
};

int run_threads(const Plan& plan, const std::function<int(RunContext&)>& body) {
  const RankStart start(plan, body);
  std::atomic<int> code = 0;
  comm::run_thread_ranks(plan.mesh.world_size(), [&](comm::Communicator& world) {
    const int result = start(world, choose_device(plan.job, world.rank()));
    if (world.rank() == 0) code = result;
  });
  return code;
}

// The world of `launch`, even where this rank has a fault to tell it. Where the others cannot be reached, the
// fault is what to say.
std::unique_ptr<comm::Communicator> meet(comm::Launch launch, const std::string& fault) {
  // Others may never come, for instance where the user starts one process by hand to see what is wrong.
  constexpr std::chrono::milliseconds patience_with_a_fault = std::chrono::seconds(30);
  if (!fault.empty()) launch.rendezvous.timeout = std::min(launch.rendezvous.timeout, patience_with_a_fault);
  try {
    return comm::make_world(launch);
  } catch (const comm::StartStopped&) {
    throw;
  } catch (const std::exception&) {
    if (fault.empty()) throw;
    throw UsageError(fmt::format("rank {}: {}", launch.rank, fault));
  }
}

}  // namespace

int run_ranks(const Plan& plan, const std::function<int(RunContext&)>& body) {
  return run_ranks([&] { return plan; }, body);
}

int run_ranks(const std::function<Plan()>& load, const std::function<int(RunContext&)>& body,
              const std::function<bool()>& stopped) {
  comm::Launch launch = comm::detect_launch();
  if (launch.kind == comm::LaunchKind::threads) return run_threads(load(), body);
  std::optional<Plan> plan;
  const std::string fault = comm::fault_of([&] {
    plan = load();
    mesh::check_world_size(plan->mesh, launch.world_size);
  });
  launch.rendezvous.stopped = stopped;
  if (plan) launch.rendezvous.timeout = milliseconds(plan->job.distributed.start_timeout_s);
  std::unique_ptr<comm::Communicator> world;
  try {
    world = meet(launch, fault);
  } catch (const comm::StartStopped& stop) {
    fmt::print(stderr, "pptrain: {}\n", stop.what());
    return stopped_exit_code;
  }
  if (!comm::agree(*world, fault)) return usage_exit_code;
  return run_in_world(*world, launch.local_rank, *plan, body);
}

int run_in_world(comm::Communicator& world, int local_rank, const Plan& plan,
                 const std::function<int(RunContext&)>& body) {
  world.set_timeout(timeout_of(plan.job));
  const RankStart start(plan, body);
  at::Device device = at::kCPU;
  const std::string own = fingerprint(plan);
  const std::string of_rank_0 = comm::broadcast_string(world, own, 0);
  const std::string own_fault = comm::fault_of([&] {
    mesh::check_world_size(plan.mesh, world.size());
    if (own != of_rank_0)
      throw UsageError(
          "the job is another one than rank 0's: start all ranks with the same job file and --set");
    device = choose_device(plan.job, local_rank);
  });
  if (!comm::agree(world, own_fault)) return usage_exit_code;
  try {
    if (device.is_cpu()) return start(world, device);
    // Two ranks on one GPU: all ranks find that, or none does.
    std::unique_ptr<comm::Communicator> nccl;
    const std::string common_fault = comm::fault_of([&] { nccl = comm::make_nccl(world, device); });
    if (!comm::agree(world, common_fault)) return usage_exit_code;
    return start(*nccl, device);
  } catch (const PeerFailure&) {
    throw;
  } catch (const std::exception& error) {
    world.abort(error.what());
    throw;
  }
}

}  // namespace pptrain::app

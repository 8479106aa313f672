#include "app/train/run_context.h"

#include <ATen/Parallel.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>

#include "app/train/memory_report.h"
#include "app/train/same_job.h"
#include "core/base/error.h"
#include "core/kernels/device_name.h"
#include "core/kernels/out_of_memory.h"
#include "parallel/comm/agreement.h"
#include "parallel/comm/bootstrap.h"
#include "parallel/comm/nccl/nccl_communicator.h"
#include "parallel/comm/thread/thread_communicator.h"

namespace pptrain::app {

namespace {

constexpr int usage_exit_code = 2;

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

std::chrono::milliseconds timeout_of(const config::JobConfig& job) {
  return std::chrono::milliseconds(static_cast<int64_t>(job.distributed.timeout_s * 1000));
}

// Puts the rank before the message of an error of `body`; a UsageError stays one. Of memory that ran out it
// says what the plan foretold.
template <typename Body>
int named(const Plan& plan, int rank, int ranks_here, at::Device device, Body&& body) {
  const auto who = [&] {
    if (plan.mesh.world_size() == 1) return std::string();
    const int pp = mesh::coordinates(plan.mesh, rank)[static_cast<int>(mesh::Axis::pp)];
    return fmt::format("rank {} (pipeline rank {}): ", rank, pp);
  };
  try {
    return body();
  } catch (const PeerFailure&) {
    throw;
  } catch (const UsageError& error) {
    throw UsageError(who() + error.what());
  } catch (const std::exception& error) {
    const std::string text = who() + kernels::plain_message(error);
    if (!kernels::is_out_of_memory(error)) throw Error(text);
    throw kernels::OutOfMemory("out of memory: " + text + describe_memory(plan, rank, ranks_here, device));
  }
}

class RankStart {
 public:
  RankStart(const Plan& plan, const std::function<int(RunContext&)>& body, int ranks_here)
      : plan_(plan), body_(body), ranks_here_(ranks_here) {}

  // `world` carries tensors of `device`.
  int operator()(comm::Communicator& world, at::Device device) const {
    at::set_num_threads(static_cast<int>(plan_.job.run.threads));
    const c10::InferenceMode inference;
    const c10::OptionalDeviceGuard guard(device.is_cuda() ? std::optional(device) : std::nullopt);
    world.set_timeout(timeout_of(plan_.job));
    return named(plan_, world.rank(), ranks_here_, device, [&] {
      mesh::DeviceMesh mesh(world, plan_.mesh);
      RunContext context{.plan = plan_, .mesh = mesh, .device = device};
      return body_(context);
    });
  }

 private:
  const Plan& plan_;
  const std::function<int(RunContext&)>& body_;
  int ranks_here_;
};

int run_threads(const Plan& plan, const std::function<int(RunContext&)>& body) {
  const RankStart start(plan, body, plan.mesh.world_size());
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
  } catch (const std::exception&) {
    if (fault.empty()) throw;
    throw UsageError(fmt::format("rank {}: {}", launch.rank, fault));
  }
}

}  // namespace

int run_ranks(const Plan& plan, const std::function<int(RunContext&)>& body) {
  return run_ranks([&] { return plan; }, body);
}

int run_ranks(const std::function<Plan()>& load, const std::function<int(RunContext&)>& body) {
  const comm::Launch launch = comm::detect_launch();
  if (launch.kind == comm::LaunchKind::threads) return run_threads(load(), body);
  std::optional<Plan> plan;
  const std::string fault = comm::fault_of([&] {
    plan = load();
    mesh::check_world_size(plan->mesh, launch.world_size);
  });
  const std::unique_ptr<comm::Communicator> world = meet(launch, fault);
  if (!comm::agree(*world, fault)) return usage_exit_code;
  return run_in_world(*world, launch.local_rank, *plan, body);
}

int run_in_world(comm::Communicator& world, int local_rank, const Plan& plan,
                 const std::function<int(RunContext&)>& body) {
  world.set_timeout(timeout_of(plan.job));
  const RankStart start(plan, body, /*ranks_here=*/1);
  at::Device device = at::kCPU;
  const std::string other_job = find_other_job(world, plan);
  const std::string own_fault = comm::fault_of([&] {
    mesh::check_world_size(plan.mesh, world.size());
    if (!other_job.empty()) throw UsageError(other_job);
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
    world.abort(kernels::plain_message(error));
    throw;
  }
}

}  // namespace pptrain::app

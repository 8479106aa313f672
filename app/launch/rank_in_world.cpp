#include "app/launch/rank_in_world.h"

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "app/forecast/costs.h"
#include "app/forecast/prediction.h"
#include "app/launch/launcher_patience.h"
#include "app/launch/same_job.h"
#include "core/base/cores.h"
#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/process.h"
#include "core/base/timing.h"
#include "core/kernels/device_name.h"
#include "core/kernels/gpu_fault.h"
#include "core/kernels/numerics.h"
#include "core/kernels/out_of_memory.h"
#include "core/metrics/memory.h"
#include "parallel/comm/agreement.h"
#include "parallel/comm/host_values.h"
#include "parallel/comm/nccl/nccl_communicator.h"
#include "parallel/comm/wait_timeout.h"

namespace pptrain::app {

namespace {

at::Device choose_device(const config::JobConfig& job, int local_rank) {
  if (job.run.device == config::Device::cpu) return at::kCPU;
  const int count = kernels::gpu_count();
  if (count == 0) {
    throw UsageError(
        "run.device: \"cuda\" is asked for, but no GPU was found (or this pptrain was built without CUDA). "
        "Use run.device = \"cpu\", or check nvidia-smi and build where nvcc is on PATH.");
  }
  return {at::kCUDA, static_cast<at::DeviceIndex>(local_rank % count)};
}

std::chrono::milliseconds timeout_of(const Plan& plan) {
  return milliseconds_of(plan.job.distributed.timeout_s);
}

double in_gb(int64_t bytes) {
  return static_cast<double>(bytes) / 1e9;
}

// Message for a failed allocation: the plan's prediction of this rank's memory by kind, and the peak so far.
// `ranks_here` ranks share this process. Never throws: unknown numbers are left out.
std::string describe_memory(const Plan& plan, int rank, int ranks_here, at::Device device) {
  std::string text;
  try {
    const int pp = mesh::coordinate(plan.mesh, rank, mesh::Axis::pp);
    const RankBytes bytes = predict(plan, make_cost_source(plan, "")).bytes.at(static_cast<size_t>(pp));
    std::string kinds;
    for (const auto& [kind, count] : bytes.kinds())
      kinds += fmt::format("{}{} {:.3f}", kinds.empty() ? "" : ", ", kind, in_gb(count));
    text = fmt::format("\npptrain plan predicts {:.3f} GB for this rank ({}), beside what the program takes",
                       in_gb(bytes.total()), kinds);
    if (ranks_here > 1) text += fmt::format("; {} ranks share this process", ranks_here);
    text += fmt::format(
        ". At most {:.3f} GB were taken so far. Use more ranks, train.recompute, or a smaller "
        "train.micro_batch_size; pptrain plan --search --memory-gb finds what fits.",
        in_gb(metrics::peak_memory_bytes(device)));
  } catch (const std::exception&) {  // memory is short
  }
  return text;
}

// The stream on which this rank's thread enqueues everything: the legacy default stream would wait for other
// ranks' streams in this process, and make them wait. High priority puts it before overlapped work.
std::optional<c10::Stream> own_stream(at::Device device) {
  if (device.is_cpu()) return std::nullopt;
  return c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device, /*isHighPriority=*/true);
}

void check_fp8(const Plan& plan, at::Device device) {
  if (!plan.model.fp8 || device.is_cpu()) return;
  if (const std::string why = kernels::why_no_fp8(device); !why.empty())
    throw UsageError("train.fp8: " + why);
}

class RankInWorld {
 public:
  RankInWorld(comm::Communicator& world, const Plan& plan, const RankOptions& options)
      : world_(world), plan_(plan), options_(options) {}

  int run(const RankBody& body) {
    world_.set_timeout(timeout_of(plan_));
    try {
      return start(body);
    } catch (const PeerFailure&) {
      if (options_.heartbeat != nullptr) options_.heartbeat->end_with_others(until_verdict);
      throw;
    } catch (const CommonFault& fault) {
      if (options_.threads_alone) throw;
      comm::agree(world_, fault.what());  // rank 0 says it
      return exit_usage;
    } catch (const UsageError& error) {
      if (fail(error, final_exit(exit_usage))) return exit_usage;
      throw;
    } catch (const std::exception& error) {
      if (fail(error, exit_failed)) return exit_failed;
      throw;
    }
  }

 private:
  // Longer than it takes to notice a broken connection.
  static constexpr std::chrono::milliseconds until_verdict{1000};

  int start(const RankBody& body) {
    at::Device device = at::kCPU;
    const auto choose = [&] { device = choose_device(plan_.job, options_.local_rank); };
    if (options_.threads_alone) {
      choose();
      return run_on(world_, device, body);
    }
    const std::string other_job = find_other_job(world_, plan_);
    const std::string own_fault = comm::fault_of([&] {
      mesh::check_world_size(plan_.mesh, world_.size());
      if (!other_job.empty()) throw UsageError(other_job);
      choose();
    });
    if (!comm::agree(world_, own_fault)) return exit_usage;
    if (device.is_cpu()) return run_on(world_, device, body);
    std::unique_ptr<comm::Communicator> gpus;
    // Two ranks on one GPU: either all ranks find that, or none does.
    std::string common_fault;
    naming_the_rank(device, [&] {
      common_fault = comm::fault_of([&] { gpus = connect_gpus(device); });
      return 0;
    });
    if (!comm::agree(world_, common_fault)) return exit_usage;
    log_of(Subsystem::comm).info("NCCL between the GPUs; this rank's is {}", device.str());
    return run_on(*gpus, device, body);
  }

  std::unique_ptr<comm::Communicator> connect_gpus(at::Device device) {
    std::function<std::string()> place;
    if (options_.activity != nullptr)
      place = [activity = options_.activity] { return activity->look_at_device(); };
    return comm::make_nccl(world_, device,
                           {.timeout = milliseconds_of(plan_.job.distributed.start_timeout_s),
                            .group_blocks = gpu_blocks(plan_).of_group,
                            .device_place = std::move(place)});
  }

  // `ranks` carries tensors of `device`.
  int run_on(comm::Communicator& ranks, at::Device device, const RankBody& body) {
    if (device.is_cuda()) {
      // Now, since a GPU that has failed tells nothing.
      gpu_ = fmt::format("{} ({})", kernels::device_name(device), kernels::device_uuid(device));
      const std::vector<int> near = processors_near(kernels::device_pci(device));
      if (bind_unless_bound(near))
        log_of(Subsystem::comm)
            .info("this rank's threads run on the {} processors near its GPU", near.size());
    }
    const LogRank naming(ranks.rank());
    at::set_num_threads(static_cast<int>(plan_.job.run.threads));
    const c10::InferenceMode inference;
    const c10::OptionalStreamGuard stream(own_stream(device));
    ranks.set_timeout(timeout_of(plan_));
    return naming_the_rank(device, [&] {
      check_fp8(plan_, device);
      mesh::DeviceMesh mesh(ranks, plan_.mesh, hosts());
      RunContext context{.plan = plan_,
                         .mesh = mesh,
                         .device = device,
                         .activity = options_.activity,
                         .heartbeat = options_.heartbeat,
                         .shares_process = options_.in_blocks};
      return body(context);
    });
  }

  // [rank] Empty if all share one.
  std::vector<int> hosts() {
    if (options_.threads_alone) return {};
    std::vector<int> numbers = comm::host_numbers(world_, host_identity());
    if (std::ranges::max(numbers) == 0) numbers.clear();
    return numbers;
  }

  // Puts the rank before the message of an error of `work`; a UsageError stays one. After a timeout the
  // message also says what the other ranks are doing, after a failed allocation what the plan predicted.
  template <typename Work>
  int naming_the_rank(at::Device device, Work&& work) {
    const int rank = world_.rank();
    const auto who = [&] {
      if (plan_.mesh.world_size() == 1) return std::string();
      const int pp = mesh::coordinate(plan_.mesh, rank, mesh::Axis::pp);
      return fmt::format("rank {} (pipeline rank {}): ", rank, pp);
    };
    try {
      return work();
    } catch (const PeerFailure&) {
      throw;
    } catch (const CommonFault&) {
      throw;
    } catch (const UsageError& error) {
      throw UsageError(who() + error.what());
    } catch (const comm::WaitTimeout& error) {
      const std::string others = comm::describe_others(states(), rank);
      throw Error(fmt::format("{}{}{}{}. Slow work needs a longer distributed.timeout_s.", who(),
                              error.what(), others.empty() ? "" : ". Meanwhile ", others));
    } catch (const std::exception& error) {
      const std::string text =
          kernels::with_gpu_fault(who() + kernels::plain_message(error), gpu_, host_name());
      if (!kernels::is_out_of_memory(error)) throw Error(text);
      throw kernels::OutOfMemory("out of memory: " + text +
                                 describe_memory(plan_, rank, options_.ranks_here, device));
    }
  }

  // What every rank does now, by rank; empty if they can't be reached.
  std::vector<comm::RankState> states() const {
    if (options_.heartbeat != nullptr) return options_.heartbeat->roll_call();
    return options_.states ? options_.states() : std::vector<comm::RankState>();
  }

  // Tells the other ranks. True if the error was printed: with several ranks in a process another one's end
  // may end it first.
  bool fail(const std::exception& error, int code) {
    const std::string text = kernels::plain_message(error);
    bool said = false;
    if (options_.heartbeat != nullptr) {
      const bool reports = options_.heartbeat->fail(text, code);
      said = reports && options_.in_blocks;
      if (said) comm::print_now(text);
      if (!reports) options_.heartbeat->end_with_others(until_verdict);
    }
    world_.abort(text);
    return said;
  }

  comm::Communicator& world_;
  const Plan& plan_;
  const RankOptions& options_;
  std::string gpu_;  // "NVIDIA H100 (GPU-6f3a...)", for messages
};

}  // namespace

int run_in_world(comm::Communicator& world, const Plan& plan, const RankBody& body,
                 const RankOptions& options) {
  return RankInWorld(world, plan, options).run(body);
}

std::unique_ptr<comm::Heartbeat> start_heartbeat(comm::Communicator& world, const comm::Launch& launch,
                                                 const Plan& plan, comm::Activity& activity,
                                                 std::function<std::string()> address) {
  double seconds = plan.job.distributed.heartbeat_s;
  comm::broadcast(world, std::span(&seconds, 1), 0);
  if (seconds <= 0) return nullptr;
  comm::Heartbeat::Options options;
  options.limit = milliseconds_of(seconds);
  options.every_rank_speaks =
      launch.kind == comm::LaunchKind::torchrun && !launch.has_agent && isatty(STDERR_FILENO) == 1;
  options.address = std::move(address);
  return comm::Heartbeat::start(world, activity, std::move(options),
                                [](const std::string& warning) { spdlog::warn(warning); });
}

void set_numerics(const Plan& plan) {
  kernels::set_numerics(plan.job.run.device == config::Device::cuda, plan.job.train.deterministic);
}

}  // namespace pptrain::app

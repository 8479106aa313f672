#include "app/launch/run_ranks.h"

#include <ATen/Parallel.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/full.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <exception>
#include <fstream>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "app/forecast/costs.h"
#include "app/forecast/prediction.h"
#include "app/launch/launcher_patience.h"
#include "app/launch/same_job.h"
#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/process.h"
#include "core/base/text.h"
#include "core/kernels/device_name.h"
#include "core/kernels/numerics.h"
#include "core/kernels/out_of_memory.h"
#include "core/metrics/memory.h"
#include "core/net/socket.h"
#include "parallel/comm/agreement.h"
#include "parallel/comm/bootstrap.h"
#include "parallel/comm/host_values.h"
#include "parallel/comm/liveness/start_watch.h"
#include "parallel/comm/nccl/nccl_communicator.h"
#include "parallel/comm/tcp/tcp_communicator.h"
#include "parallel/comm/tcp/tcp_contacts.h"
#include "parallel/comm/tcp/tcp_rendezvous.h"
#include "parallel/comm/thread/thread_communicator.h"
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

// Called before any rank starts.
void set_numerics(const Plan& plan) {
  kernels::set_numerics(plan.job.run.device == config::Device::cuda, plan.job.train.deterministic);
}

std::chrono::milliseconds milliseconds_of(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

std::chrono::milliseconds timeout_of(const config::JobConfig& job) {
  return milliseconds_of(job.distributed.timeout_s);
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

// What every rank does now, by rank; empty if they can't be reached.
using GetStates = std::function<std::vector<comm::RankState>()>;

// Runs `body` and puts the rank before its error's message; a UsageError stays one. After a timeout the
// message also says what the other ranks are doing, after a failed allocation what the plan predicted.
template <typename Body>
int named(const Plan& plan, int rank, int ranks_here, at::Device device, const GetStates& get_states,
          Body&& body) {
  const auto who = [&] {
    if (plan.mesh.world_size() == 1) return std::string();
    const int pp = mesh::coordinate(plan.mesh, rank, mesh::Axis::pp);
    return fmt::format("rank {} (pipeline rank {}): ", rank, pp);
  };
  try {
    return body();
  } catch (const PeerFailure&) {
    throw;
  } catch (const CommonFault&) {
    throw;
  } catch (const UsageError& error) {
    throw UsageError(who() + error.what());
  } catch (const comm::WaitTimeout& error) {
    const std::string others = comm::describe_others(get_states(), rank);
    throw Error(fmt::format("{}{}{}{}. Slow work needs a longer distributed.timeout_s.", who(), error.what(),
                            others.empty() ? "" : ". Meanwhile ", others));
  } catch (const std::exception& error) {
    const std::string text = who() + kernels::plain_message(error);
    if (!kernels::is_out_of_memory(error)) throw Error(text);
    throw kernels::OutOfMemory("out of memory: " + text + describe_memory(plan, rank, ranks_here, device));
  }
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

// Runs `body` as this thread's rank of `world`, which carries tensors of `device`.
int run_rank(const Plan& plan, const std::function<int(RunContext&)>& body, int ranks_here,
             comm::Communicator& world, at::Device device, const GetStates& get_states,
             comm::Activity* activity, comm::Heartbeat* heartbeat, bool in_blocks = false) {
  const LogRank naming(world.rank());
  at::set_num_threads(static_cast<int>(plan.job.run.threads));
  const c10::InferenceMode inference;
  const c10::OptionalStreamGuard stream(own_stream(device));
  world.set_timeout(timeout_of(plan.job));
  return named(plan, world.rank(), ranks_here, device, get_states, [&] {
    check_fp8(plan, device);
    mesh::DeviceMesh mesh(world, plan.mesh);
    RunContext context{.plan = plan,
                       .mesh = mesh,
                       .device = device,
                       .activity = activity,
                       .heartbeat = heartbeat,
                       .shares_process = in_blocks};
    return body(context);
  });
}

int run_threads(const Plan& plan, const std::function<int(RunContext&)>& body) {
  set_numerics(plan);
  const int ranks = plan.mesh.world_size();
  log_of(Subsystem::comm).info("no launcher: {} ranks are threads of this process", ranks);
  std::atomic<int> code = 0;
  std::deque<comm::Activity> activities(static_cast<size_t>(ranks));
  const auto get_states = [&] {
    std::vector<comm::RankState> states;
    for (const comm::Activity& activity : activities)
      states.push_back({static_cast<int>(states.size()), "", activity.state()});
    return states;
  };
  comm::run_thread_ranks(ranks, [&](comm::Communicator& world) {
    const int result = run_rank(plan, body, ranks, world, choose_device(plan.job, world.rank()), get_states,
                                &activities[static_cast<size_t>(world.rank())], /*heartbeat=*/nullptr);
    if (world.rank() == 0) code = result;
  });
  return code;
}

// Uses rank 0's job if ranks' jobs differ. address: of this rank's transport. Collective.
std::unique_ptr<comm::Heartbeat> start_heartbeat(comm::Communicator& world, const comm::Launch& launch,
                                                 const Plan& plan, comm::Activity& activity,
                                                 const std::function<std::string()>& address) {
  double seconds = plan.job.distributed.heartbeat_s;
  comm::broadcast(world, std::span(&seconds, 1), 0);
  if (seconds <= 0) return nullptr;
  comm::Heartbeat::Options options;
  options.limit = milliseconds_of(seconds);
  options.every_rank_speaks =
      launch.kind == comm::LaunchKind::torchrun && !launch.has_agent && isatty(STDERR_FILENO) == 1;
  options.address = address;
  return comm::Heartbeat::start(world, activity, std::move(options),
                                [](const std::string& warning) { spdlog::warn(warning); });
}

// Why this rank cannot start, and the matching exit code.
struct StartFault {
  std::string text;  // "" for none
  int code = exit_usage;
};

// The launched processes, from the start of this one until all have come.
class Gathering {
 public:
  Gathering(comm::Launch launch, const std::optional<Plan>& plan, const StartFault& fault,
            const std::function<bool()>& stop_requested)
      : launch_(std::move(launch)), fault_(fault) {
    if (plan) timeout_ = milliseconds_of(plan->job.distributed.start_timeout_s);
    // Others may never come, e.g. if the user starts one process by hand to see what is wrong.
    if (!fault_.text.empty()) timeout_ = std::min(timeout_, patience_with_a_fault);
    launch_.rendezvous.timeout = timeout_;
    launch_.rendezvous.stopped = stop_requested;
    watch_ = std::make_unique<comm::StartWatch>(launch_, heartbeat_limit(plan), fault_.text);
  }

  // Connects the ranks, even if this rank has a fault, to report it to them. Null if the others cannot be
  // reached; then this rank has printed its fault.
  std::unique_ptr<comm::Communicator> meet() {
    try {
      auto world = comm::make_world(launch_);
      world->set_timeout(timeout_);
      return world;
    } catch (const StoppedAtStart&) {
      throw;
    } catch (const std::exception&) {
      if (fault_.text.empty()) {
        watch_->end_if_a_rank_is_gone();
        throw;
      }
      if (!watch_->said_fault()) comm::print_now(fmt::format("rank {}: {}", launch_.rank, fault_.text));
      return nullptr;
    }
  }

  // 0 if no rank has a fault; otherwise the exit code, after rank 0 has printed the fault. Collective.
  int agree(comm::Communicator& world) {
    const bool said = !fault_.text.empty() && watch_->said_fault();
    if (comm::agree(world, said ? comm::said_already : fault_.text)) return 0;
    const bool failed = !fault_.text.empty() && fault_.code == exit_failed;
    return comm::any(world, failed) ? exit_failed : exit_usage;
  }

  const comm::Launch& launch() const { return launch_; }

  // The address of this rank's transport. MPI does not tell it: then "" unless the user has named an address.
  std::string address_of_ranks() const {
    const comm::Rendezvous& rendezvous = launch_.rendezvous;
    if (!comm::starts_our_mpi(launch_)) return comm::own_address(rendezvous, comm::meeting_host(rendezvous));
    return rendezvous.host_address.empty() ? "" : comm::own_address(rendezvous, rendezvous.host);
  }

 private:
  static constexpr std::chrono::milliseconds patience_with_a_fault = std::chrono::seconds(30);

  static std::chrono::milliseconds heartbeat_limit(const std::optional<Plan>& plan) {
    return milliseconds_of(plan ? plan->job.distributed.heartbeat_s
                                : config::DistributedSection().heartbeat_s);
  }

  comm::Launch launch_;
  const StartFault& fault_;
  std::chrono::milliseconds timeout_ = milliseconds_of(config::DistributedSection().start_timeout_s);
  std::unique_ptr<comm::StartWatch> watch_;
};

// A rank whose agent was killed would go on where no one restarts it, beside those that replace it. A shell
// in between ends at once when the agent asks for an end, and must not take the rank along.
void end_with_parent() {
  constexpr std::array<std::string_view, 4> shells{"sh", "bash", "dash", "zsh"};
  std::string parent;
  std::getline(std::ifstream(fmt::format("/proc/{}/comm", getppid())), parent);
  if (std::ranges::find(shells, parent) == shells.end()) ::prctl(PR_SET_PDEATHSIG, SIGKILL);
}

// Ranks that await rank 0's choices take them. False if one can't, after rank 0 has said so. Collective.
bool share_choices(comm::Communicator& world, Plan& plan) {
  if (!comm::any(world, plan.order == Order::awaited)) return true;
  const std::string choices = comm::broadcast_string(world, world.rank() == 0 ? choices_of(plan) : "", 0);
  return comm::agree(world, comm::fault_of([&] {
                       if (plan.order == Order::awaited) plan = with_choices(plan, choices);
                     }));
}

// --- More processes than ranks: the last ones are spare, and wait for the end of the run ---

// The processes with ranks; null if all have one. Collective over these.
std::unique_ptr<comm::Communicator> without_spares(comm::Communicator& processes, const Plan& plan) {
  const int ranks = plan.mesh.world_size();
  if (processes.size() == ranks || processes.rank() >= ranks) return nullptr;
  std::vector<int> members(static_cast<size_t>(ranks));
  std::iota(members.begin(), members.end(), 0);
  return processes.subgroup(members);
}

// Rank 0 tells the spare processes its exit code. processes: all, of which the first `ranks` have one.
void tell_spares(comm::Communicator& processes, int ranks, int code) {
  const at::Tensor value = at::full({1}, code, at::kLong);
  for (int spare = ranks; spare < processes.size(); ++spare) processes.isend(value, spare)->wait();
}

// Waits for the end of the run. A launcher that starts all processes again counts on the spare ones too, so
// they must not end before. Exception: an agent asks for an end, and may start other ranks.
int await_end(comm::Communicator& processes, const comm::Launch& launch,
              const std::function<bool()>& stop_requested) {
  constexpr std::chrono::milliseconds look{100}, patience_of_agent{3000};
  processes.set_timeout(std::chrono::hours(24 * 365));
  const at::Tensor value = at::full({1}, exit_done, at::kLong);
  const auto work = processes.irecv(value, 0);
  std::chrono::milliseconds stopping{0};
  while (!work->wait_for(look)) {
    if (!launch.has_agent || !stop_requested || !stop_requested()) continue;
    stopping += look;
    if (stopping > patience_of_agent) comm::end_process(exit_stopped);
  }
  return static_cast<int>(*value.const_data_ptr<int64_t>());
}

// --- Fewer processes than ranks: each has a block of the mesh's ranks, as threads, which meet over TCP ---

// Where the ranks meet: at an address of the first process, which tells the others. Collective.
comm::Rendezvous meeting_of_ranks(comm::Communicator& processes, const comm::Launch& launch) {
  comm::Rendezvous meeting = launch.rendezvous;
  meeting.served_by_launcher = false;
  meeting.one_host = comm::on_one_host(processes);
  std::string address;
  if (processes.rank() == 0) {
    const bool by_mpi = meeting.host.empty() && meeting.host_address.empty() && !meeting.one_host;
    const std::string host =
        by_mpi ? net::address_for_others() : comm::own_address(meeting, comm::meeting_host(meeting));
    int error = 0;
    meeting.door = std::make_shared<net::Socket>(net::listen_at(host, 0, error));
    if (!meeting.door->open())
      throw Error(fmt::format("cannot listen at {} for the ranks: {}", host, net::error_text(error)));
    address = comm::to_text({host, net::port_of(*meeting.door)});
  }
  const net::Address at = comm::read_address(comm::broadcast_string(processes, address, 0), 0);
  meeting.host = at.host;
  meeting.port = at.port;
  return meeting;
}

// Collective over the processes.
int run_blocks(comm::Communicator& processes, const comm::Launch& launch, const Plan& plan,
               const std::function<int(RunContext&)>& body) {
  const int ranks = plan.mesh.world_size();
  const std::string no_gpus =
      plan.job.run.device == config::Device::cpu
          ? ""
          : fmt::format("{} processes were launched for {} ranks: on GPUs each rank needs a process",
                        processes.size(), ranks);
  if (!comm::agree(processes, no_gpus)) return exit_usage;
  if (processes.rank() == 0) spdlog::info("{}", mesh::describe_blocks(processes.size(), ranks));
  const mesh::Block own = mesh::block_of(processes.rank(), processes.size(), ranks);
  const comm::Rendezvous meeting = meeting_of_ranks(processes, launch);
  const auto neighbours = std::make_shared<comm::TcpNeighbours>(own.first, own.size());
  std::atomic<int> code = exit_done;
  const auto run = [&](int rank) {
    comm::Activity activity;
    // Outlives the world, whose end waits for the other ranks too.
    std::unique_ptr<comm::Heartbeat> heartbeat;
    const auto world = comm::make_tcp_world(rank, ranks, meeting, neighbours);
    heartbeat = start_heartbeat(*world, launch, plan, activity,
                                [&] { return comm::own_address(meeting, comm::meeting_host(meeting)); });
    const int result = run_in_world(*world, rank - own.first, plan, body, heartbeat.get(), &activity,
                                    /*ranks_here=*/own.size(), /*in_blocks=*/true);
    if (result != exit_done) code = result;
  };
  try {
    comm::run_on_threads(own.first, own.end, run,
                         [&](int, const std::string&) { neighbours->cannot_join(); });
  } catch (const StoppedAtStart& stop) {
    fmt::print(stderr, "pptrain: {}\n", printable(stop.what()));
    return exit_stopped;
  }
  return code;
}

}  // namespace

int run_ranks(const Plan& plan, const std::function<int(RunContext&)>& body) {
  return run_ranks([&] { return plan; }, body);
}

int run_ranks(const std::function<Plan()>& load, const std::function<int(RunContext&)>& body,
              const std::function<bool()>& stop_requested) {
  const comm::Launch launch = comm::detect_launch();
  if (launch.kind == comm::LaunchKind::threads) return run_threads(load(), body);
  if (launch.has_agent) end_with_parent();
  std::optional<Plan> plan;
  StartFault fault;
  try {
    plan = load();
    mesh::check_processes(plan->mesh, launch.world_size - plan->spare_processes);
    set_numerics(*plan);
  } catch (const UsageError& error) {
    fault = {error.what(), exit_usage};
  } catch (const std::exception& error) {
    fault = {error.what(), exit_failed};
  }
  comm::Activity activity;
  // Outlives the world, whose end waits for the other ranks too.
  std::unique_ptr<comm::Heartbeat> heartbeat;
  std::optional<Gathering> gathering(std::in_place, launch, plan, fault, stop_requested);
  std::unique_ptr<comm::Communicator> world;
  try {
    world = gathering->meet();
  } catch (const StoppedAtStart& stop) {
    fmt::print(stderr, "pptrain: {}\n", printable(stop.what()));
    return exit_stopped;
  }
  if (!world) return fault.code;
  if (const int code = gathering->agree(*world); code != 0) return code;
  if (!share_choices(*world, *plan)) return exit_usage;
  if (world->size() < plan->mesh.world_size()) {
    const comm::Launch with_patience = gathering->launch();
    gathering.reset();
    return run_blocks(*world, with_patience, *plan, body);
  }
  const std::unique_ptr<comm::Communicator> working = without_spares(*world, *plan);
  comm::Communicator& ranks = working ? *working : *world;
  if (world->rank() < plan->mesh.world_size())
    heartbeat = start_heartbeat(ranks, launch, *plan, activity,
                                [&gathering] { return gathering->address_of_ranks(); });
  gathering.reset();
  if (world->rank() >= plan->mesh.world_size()) return await_end(*world, launch, stop_requested);
  const int code = run_in_world(ranks, launch.local_rank, *plan, body, heartbeat.get(), &activity);
  if (working && world->rank() == 0) tell_spares(*world, plan->mesh.world_size(), code);
  return code;
}

int run_in_world(comm::Communicator& world, int local_rank, const Plan& plan,
                 const std::function<int(RunContext&)>& body, comm::Heartbeat* heartbeat,
                 comm::Activity* activity, int ranks_here, bool in_blocks) {
  // Longer than it takes to notice a broken connection.
  constexpr std::chrono::milliseconds until_verdict{1000};
  world.set_timeout(timeout_of(plan.job));
  const auto get_states = [heartbeat] {
    return heartbeat != nullptr ? heartbeat->roll_call() : std::vector<comm::RankState>();
  };
  // True if the error was printed: with several ranks in a process another one's end may end it first.
  const auto fail = [&](const std::exception& error, int code) {
    const std::string text = kernels::plain_message(error);
    bool said = false;
    if (heartbeat != nullptr) {
      const bool reports = heartbeat->fail(text, code);
      said = reports && in_blocks;
      if (said) comm::print_now("pptrain: " + text);
      if (!reports) heartbeat->end_with_others(until_verdict);
    }
    world.abort(text);
    return said;
  };
  try {
    at::Device device = at::kCPU;
    const std::string other_job = find_other_job(world, plan);
    const std::string own_fault = comm::fault_of([&] {
      mesh::check_world_size(plan.mesh, world.size());
      if (!other_job.empty()) throw UsageError(other_job);
      device = choose_device(plan.job, local_rank);
    });
    if (!comm::agree(world, own_fault)) return exit_usage;
    std::unique_ptr<comm::Communicator> nccl;
    if (!device.is_cpu()) {
      // Two ranks on one GPU: either all ranks find that, or none does.
      std::string common_fault;
      named(plan, world.rank(), ranks_here, device, get_states, [&] {
        std::function<std::string()> device_place;
        if (activity != nullptr) device_place = [activity] { return activity->look_at_device(); };
        common_fault = comm::fault_of(
            [&] { nccl = comm::make_nccl(world, device, timeout_of(plan.job), std::move(device_place)); });
        return 0;
      });
      if (!comm::agree(world, common_fault)) return exit_usage;
      log_of(Subsystem::comm).info("NCCL between the GPUs; this rank's is {}", device.str());
    }
    return run_rank(plan, body, ranks_here, nccl ? *nccl : world, device, get_states, activity, heartbeat,
                    in_blocks);
  } catch (const PeerFailure&) {
    if (heartbeat != nullptr) heartbeat->end_with_others(until_verdict);
    throw;
  } catch (const CommonFault& fault) {
    comm::agree(world, fault.what());  // rank 0 says it
    return exit_usage;
  } catch (const UsageError& error) {
    if (fail(error, final_exit(exit_usage))) return exit_usage;
    throw;
  } catch (const std::exception& error) {
    if (fail(error, exit_failed)) return exit_failed;
    throw;
  }
}

}  // namespace pptrain::app

#include "app/launch/gathering.h"

#include <spdlog/fmt/fmt.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <string_view>
#include <utility>

#include "core/base/error.h"
#include "core/base/timing.h"
#include "core/net/socket.h"
#include "parallel/comm/agreement.h"
#include "parallel/comm/host_values.h"

namespace pptrain::app {

namespace {

constexpr std::chrono::milliseconds patience_with_a_fault = std::chrono::seconds(30);

// NCCL finds other ranks by an interface, too. Called while this process has one thread: others may read the
// environment. NCCL_SOCKET_IFNAME of the environment is kept.
void give_nccl_the_interface_of(const std::string& address) {
  if (net::is_loopback(address)) return;
  if (const std::string name = net::interface_of(address); !name.empty())
    setenv("NCCL_SOCKET_IFNAME", ("=" + name).c_str(), /*overwrite=*/0);
}

config::DistributedSection distributed_of(const std::optional<Plan>& plan) {
  return plan ? plan->job.distributed : config::DistributedSection();
}

}  // namespace

Gathering::Gathering(comm::Launch launch, const std::optional<Plan>& plan, const StartFault& fault,
                     const std::function<bool()>& stop_requested)
    : launch_(std::move(launch)),
      fault_(fault),
      timeout_(milliseconds_of(distributed_of(plan).start_timeout_s)) {
  // Others may never come, e.g. if the user starts one process by hand to see what is wrong.
  if (!fault_.text.empty()) timeout_ = std::min(timeout_, patience_with_a_fault);
  launch_.rendezvous.timeout = timeout_;
  launch_.rendezvous.stopped = stop_requested;
  const std::string& given = launch_.rendezvous.host_address;
  if (plan && plan->job.run.device == config::Device::cuda && !given.empty()) {
    try {
      give_nccl_the_interface_of(net::host_address(given));
    } catch (const UsageError&) {  // said when the ranks meet
    }
  }
  watch_ = std::make_unique<comm::StartWatch>(launch_, milliseconds_of(distributed_of(plan).heartbeat_s),
                                              fault_.text);
}

std::unique_ptr<comm::Communicator> Gathering::meet() {
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

int Gathering::agree(comm::Communicator& world) {
  const bool said = !fault_.text.empty() && watch_->said_fault();
  if (comm::agree(world, said ? comm::said_already : fault_.text)) return 0;
  const bool failed = !fault_.text.empty() && fault_.code == exit_failed;
  return comm::any(world, failed) ? exit_failed : exit_usage;
}

std::string Gathering::address_of_ranks() const {
  const comm::Rendezvous& rendezvous = launch_.rendezvous;
  if (!comm::starts_our_mpi(launch_)) return comm::own_address(rendezvous, comm::meeting_host(rendezvous));
  return rendezvous.host_address.empty() ? "" : comm::own_address(rendezvous, rendezvous.host);
}

void end_with_agent() {
  // A shell in between ends at once when the agent asks for an end, and must not take the rank along.
  constexpr std::array<std::string_view, 4> shells{"sh", "bash", "dash", "zsh"};
  std::string parent;
  std::getline(std::ifstream(fmt::format("/proc/{}/comm", getppid())), parent);
  if (std::ranges::find(shells, parent) == shells.end()) ::prctl(PR_SET_PDEATHSIG, SIGKILL);
}

bool share_choices(comm::Communicator& world, Plan& plan) {
  if (!comm::any(world, plan.order == Order::awaited)) return true;
  const std::string choices = comm::broadcast_string(world, world.rank() == 0 ? choices_of(plan) : "", 0);
  return comm::agree(world, comm::fault_of([&] {
                       if (plan.order == Order::awaited) plan = with_choices(plan, choices);
                     }));
}

}  // namespace pptrain::app

#include "app/launch/blocks.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <memory>
#include <string>

#include "core/base/error.h"
#include "core/base/process.h"
#include "core/base/text.h"
#include "core/net/socket.h"
#include "parallel/comm/agreement.h"
#include "parallel/comm/host_values.h"
#include "parallel/comm/tcp/tcp_communicator.h"
#include "parallel/comm/tcp/tcp_contacts.h"
#include "parallel/comm/tcp/tcp_rendezvous.h"
#include "parallel/comm/thread/thread_communicator.h"

namespace pptrain::app {

namespace {

// Where the ranks meet: at an address of the first process, which tells the others. Collective.
comm::Rendezvous meeting_of_ranks(comm::Communicator& processes, const comm::Launch& launch) {
  comm::Rendezvous meeting = launch.rendezvous;
  meeting.served_by_launcher = false;
  meeting.one_host = comm::on_one_host(processes);
  std::string address;
  if (processes.rank() == 0) {
    const bool by_mpi = meeting.host.empty() && meeting.host_address.empty() && !meeting.one_host;
    const std::string host =
        by_mpi ? net::address_for_others()
               : comm::own_address(meeting, meeting.host.empty() ? "" : comm::meeting_host(meeting));
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

}  // namespace

int run_blocks(comm::Communicator& processes, const comm::Launch& launch, const Plan& plan,
               const RankBody& body) {
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
    const int result = run_in_world(*world, plan, body,
                                    {.local_rank = rank - own.first,
                                     .ranks_here = own.size(),
                                     .in_blocks = true,
                                     .heartbeat = heartbeat.get(),
                                     .activity = &activity});
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

}  // namespace pptrain::app

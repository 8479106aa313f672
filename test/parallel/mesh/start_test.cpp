// The cost of starting many ranks: messages, bytes and memory.
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <fstream>
#include <functional>
#include <mutex>
#include <vector>

#include "parallel/comm/host_values.h"
#include "parallel/comm/thread/thread_communicator.h"
#include "parallel/mesh/device_mesh.h"
#include "test/parallel/comm/counting_communicator.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

namespace pptrain::mesh {
namespace {

using comm::test::CountingCommunicator;
using comm::test::Sent;

// The cost of all ranks together; for a large world, estimated from ranks spread over it.
struct Cost {
  double messages = 0;  // in the whole world
  double bytes = 0;
  size_t most_peers = 0;  // of any rank
};

Cost cost_of(int size, int asked, const std::function<void(comm::Communicator&)>& body) {
  Cost cost;
  for (int i = 0; i < asked; ++i) {
    const auto rank = static_cast<int>(static_cast<int64_t>(size) * i / asked);
    Sent sent;
    CountingCommunicator world(rank, size, sent);
    body(world);
    cost.messages += static_cast<double>(sent.messages) * size / asked;
    cost.bytes += static_cast<double>(sent.bytes) * size / asked;
    cost.most_peers = std::max(cost.most_peers, sent.peers.size());
  }
  return cost;
}

// The agreements of ranks between their start and the first step, except gathers of values from all ranks.
void agree(comm::Communicator& world) {
  const double value = 1;
  comm::any(world, false);
  comm::all_reduce_sum(world, std::vector<double>(4, value));
  comm::broadcast_string(world, "", 0);
  comm::gather_strings(world, "host", 0);
  comm::gather(world, std::span(&value, 1), 0);
  world.barrier();
  world.duplicate()->barrier();
}

TEST_CASE("what ranks agree on costs a message each, not one to every other") {
  for (const int size : {64, 1024, 16384}) {
    CAPTURE(size);
    const Cost cost = cost_of(size, size, agree);
    const double ranks = size - 1;
    // Up and down a tree: any, the sum, two barriers. Down: a text's length. Up: two gathers of two messages.
    CHECK(cost.messages == (4 * 2 + 1 + 2 * 2) * ranks);
    CHECK(cost.bytes < 64.0 * size * std::bit_width(static_cast<unsigned>(size)));
    CHECK(cost.most_peers <= static_cast<size_t>(std::bit_width(static_cast<unsigned>(size))));
  }
}

TEST_CASE("what every rank is told of every other travels up and down a tree") {
  for (const int size : {64, 1024, 4096}) {
    CAPTURE(size);
    const Cost cost =
        cost_of(size, size, [](comm::Communicator& world) { comm::gather_values(world, int64_t{7}); });
    CHECK(cost.messages == 2.0 * (size - 1));
    // Each rank receives all the values once, and passes on those below it.
    CHECK(cost.bytes < 8.0 * size * (size + std::bit_width(static_cast<unsigned>(size))));
  }
}

TEST_CASE("groups cost no message, and those that nobody asks for nothing at all") {
  const MeshShape shape{.pp = 16, .dp_replicate = 4, .dp_shard = 32, .cp = 2, .tp = 4};
  REQUIRE(shape.world_size() == 16384);
  const auto make_all = [&](comm::Communicator& world) {
    DeviceMesh mesh(world, shape);
    for (const Axis axis : {Axis::pp, Axis::dp_replicate, Axis::dp_shard, Axis::cp, Axis::tp})
      mesh.along(axis);
    for (const Group group : {Group::batch, Group::fsdp, Group::loss, Group::replica, Group::stage, Group::ep,
                              Group::efsdp, Group::eloss})
      mesh.of(group);
  };
  const Cost cost = cost_of(shape.world_size(), 64, make_all);
  CHECK(cost.messages == 0);
}

TEST_CASE("places in groups are known without the groups") {
  const MeshShape shape{.pp = 2, .dp_replicate = 2, .dp_shard = 2, .cp = 2, .tp = 2, .ep = 2};
  comm::run_thread_ranks(shape.world_size(), [&](comm::Communicator& world) {
    DeviceMesh mesh(world, shape);
    for (const Group group : {Group::batch, Group::fsdp, Group::loss, Group::replica, Group::stage, Group::ep,
                              Group::efsdp, Group::eloss}) {
      if (mesh.place(group) != mesh.of(group).rank()) throw Error("another place than the group's rank");
    }
  });
}

double resident_megabytes() {
  int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages >> pages;
  return static_cast<double>(pages) * static_cast<double>(sysconf(_SC_PAGESIZE)) / 1e6;
}

// 256 ranks in 40 groups of all of them: a mailbox for each pair would be 7.9 million.
TEST_CASE("hundreds of thread ranks start in little memory") {
  constexpr int ranks = 256;
  const double before = resident_megabytes();
  double most = 0;
  comm::run_thread_ranks(ranks, [&](comm::Communicator& world) {
    DeviceMesh mesh(world, {.pp = 2, .dp_shard = ranks / 2});
    std::vector<std::unique_ptr<comm::Communicator>> groups;
    for (int i = 0; i < 40; ++i) groups.push_back(world.duplicate());
    for (const auto& group : groups) group->barrier();
    comm::any(mesh.of(Group::loss), false);
    comm::any(mesh.of(Group::fsdp), false);
    if (comm::gather_values(world, world.rank()).at(ranks - 1) != ranks - 1)
      throw Error("a value of another rank");
    world.barrier();
    if (world.rank() == 0) most = resident_megabytes();
    world.barrier();
  });
  INFO(before << " MB before, " << most << " MB with all groups");
  CHECK(most - before < 150);
}

}  // namespace
}  // namespace pptrain::mesh

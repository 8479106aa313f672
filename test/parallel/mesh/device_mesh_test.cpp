#include "parallel/mesh/device_mesh.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <tuple>

#include "core/base/error.h"
#include "parallel/comm/thread/thread_communicator.h"
#include "test/parallel/comm/counting_communicator.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

namespace pptrain::mesh {
namespace {

using Ranks = std::vector<int>;
using pptrain::test::contains_text;

constexpr Axis all_axes[] = {Axis::pp, Axis::dp_replicate, Axis::dp_shard, Axis::cp, Axis::tp};
constexpr Group all_groups[] = {Group::batch, Group::fsdp, Group::loss,  Group::replica,
                                Group::stage, Group::ep,   Group::efsdp, Group::eloss};

TEST_CASE("axes nest in order, tp innermost") {
  const MeshShape shape{.pp = 2, .dp_replicate = 3, .dp_shard = 2, .cp = 2, .tp = 4};
  REQUIRE(shape.world_size() == 96);
  int rank = 0;
  for (int pp = 0; pp < 2; ++pp) {
    for (int replicate = 0; replicate < 3; ++replicate) {
      for (int shard = 0; shard < 2; ++shard) {
        for (int cp = 0; cp < 2; ++cp) {
          for (int tp = 0; tp < 4; ++tp, ++rank) {
            const Coordinates at{pp, replicate, shard, cp, tp};
            REQUIRE(coordinates(shape, rank) == at);
            REQUIRE(rank_at(shape, at) == rank);
          }
        }
      }
    }
  }
  REQUIRE_THROWS_AS(coordinates(shape, 96), Error);
  REQUIRE_THROWS_AS(coordinates(shape, -1), Error);
  REQUIRE_THROWS_AS(rank_at(shape, Coordinates{2, 0, 0, 0, 0}), Error);
}

TEST_CASE("groups of pp 2 x dp_shard 2") {
  const MeshShape shape{.pp = 2, .dp_shard = 2};
  REQUIRE(group(shape, 0, Axis::dp_shard) == Ranks{0, 1});
  REQUIRE(group(shape, 1, Axis::dp_shard) == Ranks{0, 1});
  REQUIRE(group(shape, 2, Axis::dp_shard) == Ranks{2, 3});
  // Stage traffic: 0 -> 2 and 1 -> 3.
  REQUIRE(group(shape, 0, Axis::pp) == Ranks{0, 2});
  REQUIRE(group(shape, 3, Axis::pp) == Ranks{1, 3});
  REQUIRE(group(shape, 3, Axis::tp) == Ranks{3});
}

TEST_CASE("groups of pp 2 x dp_shard 4") {
  const MeshShape shape{.pp = 2, .dp_shard = 4};
  REQUIRE(group(shape, 2, Axis::dp_shard) == Ranks{0, 1, 2, 3});
  REQUIRE(group(shape, 4, Axis::dp_shard) == Ranks{4, 5, 6, 7});
  REQUIRE(group(shape, 6, Axis::pp) == Ranks{2, 6});
}

TEST_CASE("the groups of one axis partition the world") {
  const MeshShape shape{.pp = 2, .dp_replicate = 2, .cp = 3, .tp = 2};
  for (const Axis axis : all_axes) {
    std::set<Ranks> groups;
    for (int r = 0; r < shape.world_size(); ++r) groups.insert(group(shape, r, axis));
    std::set<int> seen;
    for (const Ranks& ranks : groups) seen.insert(ranks.begin(), ranks.end());
    REQUIRE(static_cast<int>(groups.size()) * shape.size(axis) == shape.world_size());
    REQUIRE(static_cast<int>(seen.size()) == shape.world_size());
  }
}

// The groups, from loops over the axes: ranks with equal keys are one group, in the order of the world.
std::map<int, Ranks> groups_by_loops(const MeshShape& shape, Group group) {
  std::map<std::tuple<int, int, int, int, int, int>, Ranks> by_key;
  int rank = 0;
  for (int pp = 0; pp < shape.pp; ++pp) {
    for (int replicate = 0; replicate < shape.dp_replicate; ++replicate) {
      int in_replica = 0;  // counts dp_shard x cp x tp
      for (int shard = 0; shard < shape.dp_shard; ++shard) {
        for (int cp = 0; cp < shape.cp; ++cp) {
          for (int tp = 0; tp < shape.tp; ++tp, ++rank, ++in_replica) {
            const std::map<Group, std::tuple<int, int, int, int, int, int>> keys{
                {Group::batch, {pp, 0, 0, cp, tp, 0}},
                {Group::fsdp, {pp, replicate, 0, 0, tp, 0}},
                {Group::loss, {pp, 0, 0, 0, tp, 0}},
                {Group::replica, {pp, replicate, 0, 0, 0, 0}},
                {Group::stage, {pp, 0, 0, 0, 0, 0}},
                {Group::ep, {pp, replicate, 0, 0, 0, in_replica / shape.ep}},
                {Group::efsdp, {pp, replicate, 0, 0, 0, in_replica % shape.ep}},
                {Group::eloss, {pp, 0, 0, 0, 0, in_replica % shape.ep}}};
            by_key[keys.at(group)].push_back(rank);
          }
        }
      }
    }
  }
  std::map<int, Ranks> by_rank;
  for (const auto& [key, ranks] : by_key) {
    for (const int r : ranks) by_rank[r] = ranks;
  }
  return by_rank;
}

TEST_CASE("groups over several axes are those of loops over the axes, for worlds of up to 4096 ranks") {
  const MeshShape shape = GENERATE(values<MeshShape>({
      {},
      {.pp = 2, .dp_shard = 2},
      {.pp = 2, .dp_shard = 4, .ep = 4},
      {.pp = 2, .cp = 4, .ep = 4},
      {.pp = 3, .dp_replicate = 2, .dp_shard = 5, .cp = 2, .tp = 3, .ep = 6},
      {.dp_replicate = 3, .dp_shard = 2, .cp = 3, .tp = 2, .ep = 12},
      {.pp = 8, .dp_replicate = 2, .dp_shard = 8, .cp = 2, .tp = 8, .ep = 32},
      {.pp = 16, .dp_replicate = 4, .dp_shard = 4, .cp = 2, .tp = 8, .ep = 16},
      {.dp_shard = 512, .tp = 8, .ep = 64},
  }));
  CAPTURE(shape.describe(), shape.ep);
  check_shape(shape);
  for (const Group kind : all_groups) {
    CAPTURE(name(kind));
    const std::map<int, Ranks> expected = groups_by_loops(shape, kind);
    REQUIRE(static_cast<int>(expected.size()) == shape.world_size());
    int wrong = 0;
    for (const auto& [rank, ranks] : expected) {
      // Checks all ranks of small worlds, and two ranks of large groups to be quick.
      if (shape.world_size() > 200 && rank != ranks.front() && rank != ranks.back()) continue;
      if (group(shape, rank, kind) != ranks || shape.size(kind) != static_cast<int>(ranks.size())) ++wrong;
    }
    REQUIRE(wrong == 0);
  }
}

TEST_CASE("a mesh tells each group which of its ranks share a host") {
  const MeshShape shape{.pp = 2, .dp_shard = 4};
  comm::test::Sent sent;
  comm::test::CountingCommunicator world(1, 8, sent);
  DeviceMesh mesh(world, shape, {0, 0, 1, 1, 2, 2, 3, 3});
  const at::Tensor tensor = at::empty({100'000});
  mesh.of(Group::loss).all_reduce_sum(tensor);
  // To the other host once, and to the neighbour what it passes on.
  CHECK(sent.bytes_to.at(3) == Approx(2 * 100'000));
  CHECK(sent.bytes_to.count(2) == 0);
}

TEST_CASE("groups over several axes of known shapes") {
  const MeshShape two_by_two{.pp = 2, .dp_shard = 2};
  REQUIRE(group(two_by_two, 1, Group::fsdp) == Ranks{0, 1});
  REQUIRE(group(two_by_two, 2, Group::fsdp) == Ranks{2, 3});
  const MeshShape two_by_four{.pp = 2, .dp_shard = 4};
  REQUIRE(group(two_by_four, 3, Group::fsdp) == Ranks{0, 1, 2, 3});
  REQUIRE(group(two_by_four, 3, Group::stage) == Ranks{0, 1, 2, 3});
  REQUIRE(group(two_by_four, 4, Group::fsdp) == Ranks{4, 5, 6, 7});
  // Experts over the ranks of the other axes: 8 ranks are enough.
  const MeshShape folded{.pp = 2, .cp = 4, .ep = 4};
  check_world_size(folded, 8);
  REQUIRE(group(folded, 5, Group::ep) == Ranks{4, 5, 6, 7});
  REQUIRE(group(folded, 5, Group::efsdp) == Ranks{5});
  const MeshShape mixed{.dp_replicate = 2, .dp_shard = 2, .cp = 2, .tp = 2, .ep = 4};
  REQUIRE(group(mixed, 5, Group::ep) == Ranks{4, 5, 6, 7});
  REQUIRE(group(mixed, 5, Group::efsdp) == Ranks{1, 5});
  REQUIRE(group(mixed, 5, Group::batch) == Ranks{1, 5, 9, 13});
  REQUIRE(group(mixed, 5, Group::fsdp) == Ranks{1, 3, 5, 7});
  REQUIRE(group(mixed, 5, Group::loss) == Ranks{1, 3, 5, 7, 9, 11, 13, 15});
  REQUIRE(group(mixed, 5, Group::replica) == Ranks{0, 1, 2, 3, 4, 5, 6, 7});
  REQUIRE(group(mixed, 5, Group::eloss) == Ranks{1, 5, 9, 13});
  REQUIRE(group(mixed, 5, Group::stage).size() == 16);
  REQUIRE_THROWS_AS(group(mixed, 16, Group::ep), Error);
}

TEST_CASE("a shape that no world has is refused with its factors") {
  REQUIRE_THROWS_WITH(check_shape({.dp_shard = 2, .cp = 3, .tp = 2, .ep = 8}),
                      contains_text("ep = 8 does not divide dp_shard 2 x cp 3 x tp 2 = 12"));
  // dp_replicate and pp don't carry experts.
  REQUIRE_THROWS_AS(check_shape({.pp = 4, .dp_replicate = 4, .ep = 4}), UsageError);
  REQUIRE_THROWS_WITH(check_shape({.ep = 0}), contains_text("ep = 0"));
  REQUIRE_THROWS_WITH(check_shape({.cp = -1}), contains_text("distributed.cp = -1"));
  REQUIRE_THROWS_WITH(check_shape({.pp = 100'000, .tp = 100'000}),
                      contains_text("pp 100000 x dp_replicate 1 x dp_shard 1 x cp 1 x tp 100000"));
  REQUIRE_THROWS_AS(check_world_size({.dp_shard = 2, .ep = 3}, 2), UsageError);
}

TEST_CASE("a shape describes itself by its factors above 1") {
  REQUIRE(MeshShape{.pp = 2, .dp_replicate = 2}.describe() == "pp 2 x dp_replicate 2");
  REQUIRE(MeshShape{}.describe() == "pp 1");
}

TEST_CASE("the wrong number of processes is an error that names the factors") {
  const auto world = comm::make_thread_world(3);
  const auto& comm = world[0];
  std::string message;
  try {
    const DeviceMesh mesh(*comm, {.pp = 2, .dp_replicate = 2});
  } catch (const UsageError& e) {
    message = e.what();
  }
  INFO(message);
  for (const char* part : {"needs 4 ranks (pp 2 x dp_replicate 2)", "3 were launched", "start 4 processes"}) {
    REQUIRE(message.find(part) != std::string::npos);
  }
  REQUIRE_THROWS_AS(DeviceMesh(*comm, {.pp = 3, .tp = 0}), UsageError);
}

// The error in `comm` as the group of `expected` world ranks; "" for none.
std::string compare(comm::Communicator& comm, int world_rank, const Ranks& expected) {
  const at::Tensor all = at::full({comm.size()}, -1, at::kLong);
  comm.all_gather(all, at::full({1}, world_rank, at::kLong));
  const int64_t* data = all.const_data_ptr<int64_t>();
  const auto place = static_cast<int>(std::ranges::find(expected, world_rank) - expected.begin());
  if (Ranks(data, data + all.numel()) != expected || comm.rank() != place) return "another group";
  return "";
}

TEST_CASE("each rank gets the communicators of its groups") {
  const MeshShape shape = GENERATE(values<MeshShape>({
      {.pp = 2, .dp_replicate = 2, .tp = 2},
      {.pp = 2, .cp = 4, .ep = 4},
      {.dp_replicate = 2, .dp_shard = 2, .cp = 2, .ep = 2},
  }));
  std::mutex mutex;
  std::vector<std::string> wrong;
  comm::run_thread_ranks(shape.world_size(), [&](comm::Communicator& world) {
    DeviceMesh mesh(world, shape);
    const auto check = [&](const char* what, comm::Communicator& comm, const Ranks& expected, int size) {
      if (compare(comm, world.rank(), expected).empty() && comm.size() == size) return;
      const std::lock_guard lock(mutex);
      wrong.push_back(std::string(what) + " of rank " + std::to_string(world.rank()));
    };
    for (const Axis axis : all_axes) {
      check(name(axis), mesh.along(axis), group(shape, world.rank(), axis), mesh.size(axis));
      if (mesh.along(axis).rank() != mesh.coordinate(axis)) throw Error("another coordinate");
    }
    for (const Group kind : all_groups) {
      check(name(kind), mesh.of(kind), group(shape, world.rank(), kind), mesh.size(kind));
    }
  });
  REQUIRE(wrong == std::vector<std::string>());
}

TEST_CASE("a group of one rank works, and fails the job as any other") {
  std::string failure;
  comm::run_thread_ranks(2, [&](comm::Communicator& world) {
    DeviceMesh mesh(world, {.pp = 2});
    comm::Communicator& alone = mesh.of(Group::fsdp);
    const at::Tensor tensor = at::full({3}, 4.0);
    const at::Tensor out = at::full({3}, 0.0);
    alone.all_reduce_sum(tensor);
    alone.iall_reduce_sum(tensor)->wait();
    alone.broadcast(tensor, 0);
    alone.barrier();
    alone.iall_gather(out, tensor)->wait();
    if (out.sum().item<double>() != 12 || comm::any(alone, false)) throw Error("a group of one");
    if (alone.duplicate()->size() != 1) throw Error("a group of a group of one");
    bool refused = false;
    try {
      alone.isend(tensor, 1);
    } catch (const Error&) {
      refused = true;
    }
    if (!refused) throw Error("a group of one has nobody to send to");
    world.barrier();
    if (world.rank() == 0) return alone.abort("no space left");
    try {
      world.irecv(tensor, 0)->wait();
    } catch (const PeerFailure& e) {
      failure = e.what();
    }
  });
  REQUIRE_THAT(failure, contains_text("rank 0 failed: no space left"));
}

TEST_CASE("a mesh connects each pipeline rank with its neighbours around the ring, both ways, once") {
  using Pairs = std::vector<std::pair<int, int>>;
  const auto links = [](int pp) {
    comm::test::Sent sent;
    comm::test::CountingCommunicator world(1, 2 * pp, sent);
    const DeviceMesh mesh(world, {.pp = pp, .dp_shard = 2});
    std::ranges::sort(sent.links);
    return sent.links;
  };
  CHECK((links(1) == Pairs{}));
  CHECK((links(2) == Pairs{{0, 1}, {1, 0}}));
  CHECK((links(4) == Pairs{{0, 1}, {0, 3}, {1, 0}, {1, 2}, {2, 1}, {2, 3}, {3, 0}, {3, 2}}));
}

TEST_CASE("processes have ranks in a row, as equally many as can be, and no rank is left out") {
  for (int processes = 1; processes <= 9; ++processes) {
    for (int ranks = processes; ranks <= 24; ++ranks) {
      int next = 0;
      for (int process = 0; process < processes; ++process) {
        const Block block = block_of(process, processes, ranks);
        REQUIRE(block.first == next);
        REQUIRE((block.size() == ranks / processes || block.size() == (ranks - 1) / processes + 1));
        next = block.end;
      }
      REQUIRE(next == ranks);
    }
  }
  CHECK(block_of(99'999, 100'000, 100'000).first == 99'999);  // products beyond 32 bits
  CHECK(describe_blocks(3, 8) == "8 ranks in 3 processes: 2 + 3 + 3");
  CHECK(describe_blocks(1, 4) == "4 ranks in 1 process: 4");
  const MeshShape shape{.pp = 2, .tp = 2};
  for (const int processes : {1, 3, 4}) CHECK_NOTHROW(check_processes(shape, processes));
  CHECK_THROWS_WITH(check_processes(shape, 5),
                    contains_text("needs 4 ranks (pp 2 x tp 2), but 5 were launched"));
  CHECK_THROWS_WITH(check_processes({.tp = 0}, 1), contains_text("distributed.tp = 0"));
  CHECK_THROWS_AS(rank_at(shape, Coordinates{0, 0, 0, 0, -1}), Error);
}

}  // namespace
}  // namespace pptrain::mesh

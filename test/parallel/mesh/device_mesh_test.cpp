#include "parallel/mesh/device_mesh.h"

#include <ATen/ops/full.h>

#include <mutex>
#include <set>

#include "core/base/error.h"
#include "parallel/comm/thread/thread_communicator.h"
#include "test/support/catch.h"

namespace pptrain::mesh {
namespace {

using Ranks = std::vector<int>;

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
  for (const Axis axis : {Axis::pp, Axis::dp_replicate, Axis::dp_shard, Axis::cp, Axis::tp}) {
    std::set<Ranks> groups;
    for (int r = 0; r < shape.world_size(); ++r) groups.insert(group(shape, r, axis));
    std::set<int> seen;
    for (const Ranks& ranks : groups) seen.insert(ranks.begin(), ranks.end());
    REQUIRE(static_cast<int>(groups.size()) * shape.size(axis) == shape.world_size());
    REQUIRE(static_cast<int>(seen.size()) == shape.world_size());
  }
}

TEST_CASE("a shape describes itself by its factors above 1") {
  REQUIRE(MeshShape{.pp = 2, .dp_replicate = 2}.describe() == "pp 2 x dp_replicate 2 = 4");
  REQUIRE(MeshShape{}.describe() == "pp 1 = 1");
}

TEST_CASE("the wrong number of processes is an error that names the factors") {
  comm::ThreadWorld world(3);
  const auto comm = world.rank(0);
  std::string message;
  try {
    const DeviceMesh mesh(*comm, {.pp = 2, .dp_replicate = 2});
  } catch (const UsageError& e) {
    message = e.what();
  }
  INFO(message);
  for (const char* part : {"pp 2 x dp_replicate 2 = 4 ranks", "3 were launched", "start 4 processes"}) {
    REQUIRE(message.find(part) != std::string::npos);
  }
  REQUIRE_THROWS_AS(DeviceMesh(*comm, {.pp = 3, .tp = 0}), UsageError);
}

TEST_CASE("each rank gets the communicators of its groups") {
  const MeshShape shape{.pp = 2, .dp_replicate = 2, .tp = 2};
  std::mutex mutex;
  std::vector<std::string> wrong;
  comm::run_thread_ranks(shape.world_size(), [&](comm::Communicator& world) {
    DeviceMesh mesh(world, shape);
    for (const Axis axis : {Axis::pp, Axis::dp_replicate, Axis::dp_shard, Axis::cp, Axis::tp}) {
      comm::Communicator& along = mesh.along(axis);
      const Ranks expected = group(shape, world.rank(), axis);
      const at::Tensor mine = at::full({1}, world.rank(), at::kLong);
      const at::Tensor all = at::full({along.size()}, -1, at::kLong);
      along.all_gather(all, mine);
      const int64_t* data = all.const_data_ptr<int64_t>();
      const Ranks ranks(data, data + all.numel());
      if (ranks != expected || along.rank() != mesh.coordinate(axis) || along.size() != mesh.size(axis)) {
        const std::lock_guard lock(mutex);
        wrong.push_back(std::string(name(axis)) + " of rank " + std::to_string(world.rank()));
      }
    }
  });
  REQUIRE(wrong.empty());
}

}  // namespace
}  // namespace pptrain::mesh

// Ranks of one process, as threads, and their messages.
#include "parallel/comm/tcp/tcp_neighbours.h"

#include <spdlog/fmt/fmt.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <numeric>
#include <vector>

#include "core/base/error.h"
#include "parallel/comm/tcp/tcp_communicator.h"
#include "test/parallel/comm/exercise.h"
#include "test/support/catch.h"
#include "test/support/ops.h"
#include "test/support/processes.h"

namespace pptrain::comm {
namespace {

using pptrain::test::contains_text;

// Runs `rank_main` for each rank of a world as a thread, in blocks that are as processes to each other.
void run_blocks(const std::vector<int>& sizes, const std::function<void(Communicator&)>& rank_main) {
  const int size = std::accumulate(sizes.begin(), sizes.end(), 0);
  Rendezvous rendezvous{.host = "127.0.0.1", .port = pptrain::test::free_port(), .one_host = true};
  std::vector<std::future<void>> ranks;
  int first = 0;
  for (const int count : sizes) {
    const auto neighbours = std::make_shared<TcpNeighbours>(first, count);
    for (int rank = first; rank < first + count; ++rank) {
      ranks.push_back(std::async(std::launch::async, [=, &rank_main] {
        const auto world = make_tcp_world(rank, size, rendezvous, neighbours);
        rank_main(*world);
      }));
    }
    first += count;
  }
  for (std::future<void>& rank : ranks) rank.get();
}

TEST_CASE("TCP does what a transport must if processes have several ranks") {
  const std::vector<int> sizes = GENERATE(std::vector{5}, std::vector{3, 2}, std::vector{1, 2, 2});
  REQUIRE_NOTHROW(run_blocks(sizes, test::exercise));
}

TEST_CASE("TCP: a neighbour that ends in order fails only those that wait for it") {
  std::atomic<int> failed = 0;
  run_blocks({4}, [&](Communicator& world) {
    at::Tensor message = at::zeros({4});
    if (world.rank() == 3) world.isend(message, 2)->wait();
    if (world.rank() == 3) return;
    if (world.rank() == 2) {
      world.irecv(message, 3)->wait();  // what it sent before arrives
      CHECK_THROWS_AS(world.irecv(message, 3)->wait(), PeerFailure);
      ++failed;
    }
  });
  CHECK(failed == 1);
}

TEST_CASE("TCP: a neighbour that fails ends all") {
  std::atomic<int> ended = 0;
  run_blocks({3, 2}, [&](Communicator& world) {
    if (world.rank() == 1) return world.abort("boom");
    at::Tensor message = at::zeros({4});
    CHECK_THROWS_WITH(world.irecv(message, 1)->wait(), contains_text("rank 1 failed: boom"));
    ++ended;
  });
  CHECK(ended == 4);
}

TEST_CASE("messages between ranks of a process", "[.bench]") {
  constexpr int64_t bytes = 64 << 20;
  constexpr int times = 20;
  run_blocks({2}, [&](Communicator& world) {
    at::Tensor message = at::zeros({bytes}, at::kByte);
    world.barrier();
    const auto start = std::chrono::steady_clock::now();
    at::Tensor posted = at::zeros({1});
    for (int i = 0; i < times; ++i) {
      if (world.rank() == 0) {
        world.irecv(posted, 1)->wait();
        world.isend(message, 1)->wait();
      } else {
        const auto work = world.irecv(message, 0);
        world.isend(posted, 0)->wait();
        work->wait();
      }
    }
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
    if (world.rank() == 1)
      fmt::print("{:.1f} GB/s\n", static_cast<double>(bytes) * times / time.count() / 1e9);
  });
}

}  // namespace
}  // namespace pptrain::comm

#include "parallel/shard/grad_norm.h"

#include <cmath>
#include <limits>
#include <mutex>
#include <vector>

#include "parallel/comm/host_values.h"
#include "parallel/comm/split.h"
#include "parallel/comm/thread/thread_communicator.h"
#include "test/support/catch.h"

using namespace pptrain;

namespace {

// Without one of these the norm has other bits, as it has in some orders of a plain sum. The expected one is
// the root of their sum as a fraction (Python's fractions.Fraction), rounded once before and once after.
const std::vector<double> squares = {
    0x1.23456789abcdfp60, 0x1.fedcba9876543p58, 0x1.0f1e2d3c4b5a7p57, 0x1.9p49,
    0x1.7777777777777p55, 0x1.1111111111111p40, 0x1.3579bdf02468ap59, 0x1.8p47};
constexpr double norm_of_squares = 0x1.8e43d8a5029acp+30;

}  // namespace

TEST_CASE("the norm has the same bits whoever holds what") {
  for (const auto& [stages, shards] :
       std::vector<std::pair<int, int>>{{1, 1}, {2, 1}, {1, 3}, {2, 3}, {4, 2}}) {
    std::mutex mutex;
    const int ranks = stages * shards;
    comm::run_thread_ranks(ranks, [&, shards = shards](comm::Communicator& world) {
      const auto replica = comm::split(world, [&](int rank) { return rank / shards; });
      const auto pipeline = comm::split(world, [&](int rank) { return rank % shards; });
      kernels::ExactSum own;
      for (size_t i = 0; i < squares.size(); ++i) {
        if (static_cast<int>(i * 5 % ranks) == world.rank()) own.add(squares[i]);
      }
      const shard::GradNorm norm(*replica, *pipeline);
      const double value = norm(own);
      // The same with an exchange along the pipeline.
      comm::Exchange exchange(*pipeline);
      const auto words = norm.of_replica(own).portable();
      exchange.start(words);
      std::vector<kernels::ExactSum> told;
      for (const std::vector<double>& values : exchange.wait("squares"))
        told.emplace_back(std::span<const double>(values));
      const double later = shard::GradNorm::of_stages(told);
      const std::lock_guard lock(mutex);
      CHECK(value == norm_of_squares);
      CHECK(later == norm_of_squares);
    });
  }
}

TEST_CASE("a gradient that is not finite anywhere shows everywhere") {
  std::mutex mutex;
  comm::run_thread_ranks(4, [&](comm::Communicator& world) {
    const auto replica = comm::split(world, [](int rank) { return rank / 2; });
    const auto pipeline = comm::split(world, [](int rank) { return rank % 2; });
    kernels::ExactSum own;
    own.add(world.rank() == 3 ? std::numeric_limits<double>::infinity() : 1.0);
    const double value = shard::GradNorm(*replica, *pipeline)(own);
    const std::lock_guard lock(mutex);
    CHECK(std::isnan(value));
  });
}

#include "parallel/shard/grad_norm.h"

#include <cmath>
#include <mutex>

#include "core/base/error.h"
#include "parallel/comm/exchange.h"
#include "parallel/comm/thread/thread_communicator.h"
#include "test/support/catch.h"

using namespace pptrain;

TEST_CASE("the norm has the same bits whoever holds what") {
  // Values of very different sizes: another order of summation would give other bits.
  const std::vector<std::pair<std::string, double>> all = {{"layers.0.q", 1e16}, {"embed", 3.14},
                                                           {"layers.1.q", 0.1},  {"head", 1e-3},
                                                           {"norm", 7e8},        {"layers.10.q", 2.7}};
  double reference = 0;
  for (const int p : {1, 2, 3, 6}) {
    std::mutex mutex;
    comm::run_thread_ranks(p, [&](comm::Communicator& world) {
      std::vector<std::string> names;
      std::vector<double> squares;
      for (size_t i = 0; i < all.size(); ++i) {
        if (static_cast<int>(i * 5 % p) != world.rank()) continue;
        names.push_back(all[i].first);
        squares.push_back(all[i].second);
      }
      const shard::GradNorm norm(world, names);
      const double value = norm(squares);
      std::vector<size_t> counts;
      for (int rank = 0; rank < p; ++rank) counts.push_back(norm.parameters_of(rank));
      comm::Exchange exchange(world, counts);
      exchange.start(squares);
      const auto told = exchange.wait("squared norms");
      const double later = norm.of_ranks({told.begin(), told.end()});
      const std::lock_guard lock(mutex);
      CHECK(norm.parameters() == all.size());
      if (reference == 0) reference = value;
      CHECK(value == reference);
      CHECK(later == reference);
      CHECK(value == Approx(std::sqrt(1e16 + 7e8 + 3.14 + 0.1 + 1e-3 + 2.7)));
    });
  }
}

TEST_CASE("a parameter on two ranks is refused by name") {
  const auto run = [] {
    comm::run_thread_ranks(
        2, [](comm::Communicator& world) { const shard::GradNorm norm(world, {"embed.weight"}); });
  };
  CHECK_THROWS_WITH(run(), test::contains_text("embed.weight"));
}

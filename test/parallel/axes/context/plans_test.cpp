// The plans of context-parallel ranks agree without a message.
#include "parallel/axes/context/plans.h"

#include <random>
#include <vector>

#include "core/base/error.h"
#include "core/data/tokens/context_split.h"
#include "test/core/data/tokens/random_split.h"
#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::context;
using namespace pptrain::test;

namespace {

std::vector<RingPlan> plans(tokens::ContextSplit split, const tokens::Segments& segments,
                            int64_t window = 0) {
  std::vector<RingPlan> result;
  for (split.part = 0; split.part < split.parts(); ++split.part)
    result.push_back(plan_ring(split, segments, window));
  return result;
}

using Heads = std::vector<std::vector<int64_t>>;

}  // namespace

TEST_CASE("ranks agree on how far keys travel, and on who computes with whose") {
  std::mt19937 random(3);
  for (int round = 0; round < 100; ++round) {
    const int ranks = 2 + static_cast<int>(random() % 6);
    const auto segments = random_documents(random, 64);
    const auto all = plans(random_split(random, 64, ranks), segments, round % 3 == 0 ? 0 : round % 20);
    for (const RingPlan& plan : all) {
      REQUIRE(plan.steps.size() == all[0].steps.size());
      for (int step = 0; step < plan.steps_count(); ++step) {
        const RingPlan& user = all[static_cast<size_t>(plan.user(step))];
        CHECK(user.owner(step) == plan.rank);
        CHECK(plan.used[static_cast<size_t>(step)] == !user.steps[static_cast<size_t>(step)].empty());
      }
    }
  }
}

TEST_CASE("the ring stops where nobody needs more") {
  const auto split = tokens::split_rows(tokens::ContextOrder::contiguous, 1, 32, 4, 0);
  const auto steps = [&](std::vector<int32_t> starts) {
    return plans(split, tokens::make_segments(std::move(starts), at::kCPU))[0].steps_count();
  };
  CHECK(steps({0, 32}) == 4);
  CHECK(steps({0, 8, 16, 24, 32}) == 1);  // each document on one rank
  CHECK(steps({0, 4, 12, 24, 32}) == 2);  // from one rank to its neighbour
  CHECK(steps({0, 7, 25, 32}) == 4);      // one over all ranks: the last needs the first's keys
  const auto windowed = [&](int64_t window) {
    return plan_ring(split, tokens::make_segments({0, 32}, at::kCPU), window).steps_count();
  };
  CHECK(windowed(1) == 1);
  CHECK(windowed(2) == 2);  // the first query of a rank sees the last key of its neighbour
  CHECK(windowed(9) == 2);
  CHECK(windowed(10) == 3);
}

TEST_CASE("heads are shared out with the key-value heads that they need") {
  CHECK(share_kv_heads(8, 4, 2) == Heads{{0, 1}, {2, 3}});
  CHECK(share_kv_heads(8, 2, 4) == Heads{{0}, {0}, {1}, {1}});
  CHECK(share_kv_heads(6, 2, 3) == Heads{{0, 0}, {0, 1}, {1, 1}});  // heads in the middle need two
  CHECK(share_kv_heads(4, 1, 4) == Heads{{0}, {0}, {0}, {0}});
  CHECK(share_kv_heads(4, 4, 4) == Heads{{0}, {1}, {2}, {3}});
  CHECK_THROWS_WITH(share_kv_heads(6, 2, 4),
                    "attention: 6 heads cannot be shared out among 4 context-parallel ranks");
}

// Which threads of a launch share a core.
#include "app/launch/core_check.h"

#include <vector>

#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::test;
using app::RankCores;

namespace {

// Ranks on host a, which has eight processors; each rank with the ones it is bound to.
std::vector<RankCores> ranks_of(const std::vector<std::vector<int>>& processors, int64_t threads = 1) {
  std::vector<RankCores> ranks;
  for (const auto& own : processors)
    ranks.push_back({.host = "a", .threads = threads, .cores = {.processors = own, .of_host = 8}});
  return ranks;
}

const std::vector<int> all = {0, 1, 2, 3, 4, 5, 6, 7};

}  // namespace

TEST_CASE("each thread has a core: of an unbound host, or bound to its own") {
  CHECK(app::describe_crowding(ranks_of({all, all, all, all}, 2)).empty());
  CHECK(app::describe_crowding(ranks_of({{0}, {1}, {2}})).empty());
  CHECK(app::describe_crowding(ranks_of({{0, 1}, {2, 3}}, 2)).empty());
  CHECK(app::describe_crowding({}).empty());
}

TEST_CASE("more threads than the host has cores are said, with the host") {
  CHECK(app::describe_crowding(ranks_of({all, all, all}, 3)) == "host a: 9 threads of 3 ranks on 8 cores");
  auto ranks = ranks_of({all, all, all}, 3);
  for (RankCores& rank : ranks_of({all, all, all, all}, 8)) {
    rank.host = "b";
    ranks.push_back(rank);
  }
  CHECK(app::describe_crowding(ranks) ==
        "host a: 9 threads of 3 ranks on 8 cores; host b: 32 threads of 4 ranks on 8 cores");
  const app::CoreSharing sharing = app::core_sharing(ranks);
  CHECK(sharing.cores == 8);
  CHECK(sharing.ranks_per_set == 4);
}

// Open MPI binds a single rank to one core, however many threads it has.
TEST_CASE("a rank that is bound to fewer cores than it has threads is said, though the host has more") {
  CHECK_THAT(app::describe_crowding(ranks_of({{0}}, 2)),
             contains_text("host a: 2 threads of rank 0 on 1 core of 8, to which the launcher binds"));
  CHECK_THAT(app::describe_crowding(ranks_of({{0}, {1}}, 2)), contains_text("2 threads of rank 0 on 1 core"));
  // Two launches of one host bind their ranks to the same cores.
  CHECK_THAT(app::describe_crowding(ranks_of({{0, 1}, {0, 1}, {0, 1}})),
             contains_text("3 threads of 3 ranks on 2 cores of 8"));
  // One set contains the other: the ranks together have the larger one.
  CHECK_THAT(app::describe_crowding(ranks_of({{0, 1}, {0}, {1}})),
             contains_text("3 threads of 3 ranks on 2"));
}

TEST_CASE("a quota of a control group is shared by its ranks, whatever they are bound to") {
  auto ranks = ranks_of({{0}, {1}, {2}, {3}});
  for (RankCores& rank : ranks) {
    rank.cores.quota = 2.5;
    rank.cores.group = "/sys/fs/cgroup/job";
  }
  CHECK(app::describe_crowding(ranks) ==
        "host a: 4 threads of 4 ranks on 2.5 cores, the quota of /sys/fs/cgroup/job");
  ranks.resize(2);
  CHECK(app::describe_crowding(ranks).empty());
}

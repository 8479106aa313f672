#include "parallel/comm/agreement.h"

#include <ATen/Parallel.h>

#include <atomic>
#include <mutex>

#include "parallel/comm/thread/thread_communicator.h"
#include "test/support/catch.h"

namespace pptrain::comm {
namespace {

using Faults = std::vector<std::string>;

TEST_CASE("a fault that all share is said as it is, others with the ranks that have them") {
  REQUIRE(report_faults(Faults{"x is 3"}) == "x is 3");
  REQUIRE(report_faults(Faults{"x is 3", "x is 3", "x is 3"}) == "x is 3");
  REQUIRE(report_faults(Faults{"", "no file"}) == "rank 1: no file");
  REQUIRE(report_faults(Faults{"a", "b", "", "a"}) == "ranks 0, 3: a\nrank 1: b");
}

// The message of rank 0, and the number of ranks that go on.
std::pair<Faults, int> agreement_of(const Faults& faults) {
  std::mutex mutex;
  Faults said;
  std::atomic<int> sound = 0;
  run_thread_ranks(static_cast<int>(faults.size()), [&](Communicator& world) {
    const auto say = [&](const std::string& report) {
      const std::lock_guard lock(mutex);
      said.push_back(report);
    };
    if (agree(world, faults[world.rank()], say)) ++sound;
  });
  return {said, sound};
}

TEST_CASE("all ranks agree, and one of them speaks, once") {
  at::set_num_threads(1);
  REQUIRE(agreement_of({"", "", ""}) == std::pair(Faults{}, 3));
  REQUIRE(agreement_of({"wrong", "wrong"}) == std::pair(Faults{"wrong"}, 0));
  REQUIRE(agreement_of({"", "", "no file\nno GPU", ""}) == std::pair(Faults{"rank 2: no file\nno GPU"}, 0));
  REQUIRE(agreement_of({"wrong"}) == std::pair(Faults{"wrong"}, 0));
}

TEST_CASE("a fault is what a UsageError says") {
  REQUIRE(fault_of([] {}).empty());
  REQUIRE(fault_of([] { throw UsageError("no file"); }) == "no file");
  REQUIRE_THROWS_AS(fault_of([] { throw Error("broken"); }), Error);
}

}  // namespace
}  // namespace pptrain::comm

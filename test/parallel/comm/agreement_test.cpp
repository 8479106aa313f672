#include "parallel/comm/agreement.h"

#include <ATen/Parallel.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "core/base/error.h"
#include "parallel/comm/host_values.h"
#include "parallel/comm/message_communicator.h"
#include "parallel/comm/thread/thread_communicator.h"
#include "test/support/catch.h"

namespace pptrain::comm {
namespace {

using Faults = std::vector<std::string>;

// Rank 1 of two, whose rank 0 has a clock that is some seconds ahead.
class RootAhead final : public MessageCommunicator {
 public:
  RootAhead() : MessageCommunicator(std::chrono::seconds(1)) {}

  static constexpr std::chrono::seconds ahead{5};

  int rank() const override { return 1; }
  int size() const override { return 2; }
  std::unique_ptr<Work> isend(const at::Tensor& /*tensor*/, int /*destination*/) override { return join(); }
  std::unique_ptr<Work> irecv(at::Tensor tensor, int /*source*/) override {
    const std::chrono::nanoseconds now = std::chrono::steady_clock::now().time_since_epoch();
    tensor.fill_((now + ahead).count());
    return join();
  }
  std::unique_ptr<Communicator> subgroup(std::span<const int> /*members*/) override { return nullptr; }
  void abort(const std::string& message) override { throw Error(message); }

 private:
  std::unique_ptr<Communicator> on_lane(Lane /*lane*/) const override { return nullptr; }
};

TEST_CASE("a rank learns what to add to its clock to get rank 0's") {
  RootAhead comm;
  const std::chrono::nanoseconds offset = clock_offset(comm, /*same_clock=*/false);
  CHECK(std::chrono::abs(offset - RootAhead::ahead) < std::chrono::milliseconds(100));
  CHECK(clock_offset(comm, /*same_clock=*/true) == std::chrono::nanoseconds(0));
}

TEST_CASE("a fault that all share is said as it is, others with the ranks that have them") {
  REQUIRE(report_faults(Faults{"x is 3"}) == "x is 3");
  REQUIRE(report_faults(Faults{"x is 3", "x is 3", "x is 3"}) == "x is 3");
  REQUIRE(report_faults(Faults{"", "no file"}) == "rank 1: no file");
  REQUIRE(report_faults(Faults{"a", "b", "", "a"}) == "ranks 0, 3: a\nrank 1: b");
}

TEST_CASE("processes of one machine reach each other by loopback, unless they have networks of their own") {
  // What a child process calls the place, in a network of its own or not; "" if it may have none.
  const auto identity_of_child = [](int network) {
    std::array<int, 2> ends{};
    REQUIRE(pipe(ends.data()) == 0);
    const pid_t child = fork();
    if (child == 0) {
      const std::string own = network == 0 || unshare(network) == 0 ? loopback_identity() : "";
      _exit(write(ends[1], own.data(), own.size()) == static_cast<ssize_t>(own.size()) ? 0 : 1);
    }
    close(ends[1]);
    std::array<char, 256> text{};
    const ssize_t size = read(ends[0], text.data(), text.size());
    close(ends[0]);
    REQUIRE(waitpid(child, nullptr, 0) == child);
    return std::string(text.data(), static_cast<size_t>(std::max<ssize_t>(size, 0)));
  };
  CHECK(identity_of_child(0) == loopback_identity());
  if (const std::string apart = identity_of_child(CLONE_NEWUSER | CLONE_NEWNET); !apart.empty())
    CHECK(apart != loopback_identity());
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

// GPUs that end no work, with marks in place of GPUs.
#include "parallel/comm/liveness/stall_watch.h"

#include <atomic>
#include <chrono>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "test/support/catch.h"
#include "test/support/wait_until.h"

namespace pptrain::comm {
namespace {

using namespace std::chrono_literals;
using pptrain::test::contains_text;
using pptrain::test::wait_until;

// Two ranks, and what the watch does to their process.
struct Process {
  std::deque<Activity> ranks{2};
  std::mutex mutex;
  std::vector<std::string> said;
  std::atomic<int> code = -1;

  StallWatch::Options options(std::chrono::milliseconds timeout) {
    StallWatch::Options result{.timeout = timeout, .look_every = 5ms};
    result.say = [this](const std::string& text) {
      const std::lock_guard lock(mutex);
      said.push_back(text);
    };
    result.end = [this](int given) { code = given; };
    return result;
  }
};

TEST_CASE("a process ends if its GPUs have work, and end none of it") {
  Process process;
  process.ranks[1].enqueued("F stage 1 microbatch 0", [] { return true; });
  process.ranks[1].enqueued("F stage 1 microbatch 1", [] { return false; });
  const StallWatch watch(process.ranks, process.options(50ms));
  REQUIRE(wait_until([&] { return process.code >= 0; }));
  CHECK(process.code == 1);
  const std::lock_guard lock(process.mutex);
  REQUIRE(process.said.size() == 1);
  CHECK_THAT(process.said[0],
             contains_text("for 0.1 s no GPU has ended any pass: the GPU of rank 1 is in F stage 1 "
                           "microbatch 1. It is stuck, or slower than distributed.timeout_s"));
}

TEST_CASE("a process goes on if any of its GPUs ends work, or if they have none", "[clock]") {
  Process process;
  const StallWatch watch(process.ranks, process.options(200ms));
  std::this_thread::sleep_for(400ms);
  process.ranks[0].enqueued("waits for the other", [] { return false; });
  std::atomic<int> ended = 0;
  for (int i = 0; i < 20; ++i) {
    process.ranks[1].enqueued("B", [&ended, i] { return ended > i; });
    std::this_thread::sleep_for(20ms);
    ++ended;
  }
  CHECK(process.code == -1);
}

}  // namespace
}  // namespace pptrain::comm

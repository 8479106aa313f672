// The thread: it looks by itself, and ends a process that does not come back.
#include "parallel/comm/nccl/device_watchdog.h"

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "core/base/error.h"
#include "parallel/comm/liveness/activity.h"
#include "test/support/catch.h"
#include "test/support/wait_until.h"

namespace pptrain::comm {
namespace {

using namespace std::chrono_literals;
using pptrain::test::contains_text;
using pptrain::test::wait_until;

// What a watchdog said and did at its end.
struct Outcome {
  std::mutex mutex;
  std::string said;
  std::atomic<int> code = -1;

  DeviceWatchdog::Options options(std::chrono::milliseconds grace) {
    return {.look_every = 5ms,
            .grace = grace,
            .on_thread = {},
            .say =
                [this](const std::string& text) {
                  const std::lock_guard lock(mutex);
                  said = text;
                },
            .end = [this](int c) { code = c; }};
  }
};

TEST_CASE("the thread sees what the host's transport knows, and leaves a rank that comes back alone") {
  Outcome outcome;
  std::atomic<bool> lost = false;
  std::atomic<int> looks = 0;
  DeviceWatchdog watchdog({.host_failure =
                               [&] {
                                 ++looks;
                                 return lost ? std::string("rank 1 died") : std::string();
                               },
                           .device_place = {}},
                          outcome.options(1h));
  REQUIRE(wait_until([&] { return looks > 2; }));
  CHECK_NOTHROW(watchdog.watch().check());
  lost = true;
  REQUIRE(wait_until([&] { return watchdog.watch().failure().has_value(); }));
  CHECK_THROWS_AS(watchdog.watch().check(), PeerFailure);
  watchdog.stop();
  CHECK(outcome.code == -1);
}

TEST_CASE("a process whose rank does not come back after a failure ends, with the failure's words") {
  Outcome outcome;
  DeviceWatchdog watchdog({}, outcome.options(20ms));
  watchdog.watch().fail({DeviceFailure::Kind::timeout, "rank 3 waited 10.0 s for a message"});
  REQUIRE(wait_until([&] { return outcome.code != -1; }));
  CHECK(outcome.code == 1);
  const std::lock_guard lock(outcome.mutex);
  CHECK_THAT(outcome.said,
             contains_text("rank 3 waited 10.0 s for a message. NCCL is aborted, but the rank"));
}

TEST_CASE("a thread that cannot take its device is a failure") {
  Outcome outcome;
  auto options = outcome.options(1h);
  options.on_thread = [] { throw Error("no such device"); };
  DeviceWatchdog watchdog({}, options);
  REQUIRE(wait_until([&] { return watchdog.watch().failure().has_value(); }));
  CHECK_THROWS_WITH(watchdog.watch().check(), "no such device");
}

TEST_CASE("an activity tells how far the device is behind the host") {
  Activity activity;
  int done = 0;
  const auto enqueue = [&](int number, const std::string& text) {
    activity.set(Doing::work, text);
    activity.enqueued(text, [&done, number] { return done > number; });
  };
  CHECK(activity.look_at_device().empty());
  enqueue(0, "F stage 5 microbatch 0");
  enqueue(1, "F stage 5 microbatch 1");
  CHECK(activity.state().text == "F stage 5 microbatch 1");  // nobody has looked
  CHECK(activity.look_at_device() == "F stage 5 microbatch 0");
  CHECK(activity.state().text == "F stage 5 microbatch 1 (its GPU: F stage 5 microbatch 0)");
  {
    const ActivityScope waiting(&activity, Doing::wait, "RECV_F stage 5 microbatch 2");
    CHECK_THAT(describe(activity.state()),
               contains_text("waits for RECV_F stage 5 microbatch 2 (its GPU: F stage 5 microbatch 0) for"));
  }
  // The scope has put back what the host does, without the device.
  CHECK(activity.state().text == "F stage 5 microbatch 1 (its GPU: F stage 5 microbatch 0)");
  done = 1;
  CHECK(activity.look_at_device() == "F stage 5 microbatch 1");
  CHECK(activity.state().text == "F stage 5 microbatch 1");  // the device is where the host is
  done = 2;
  CHECK(activity.look_at_device().empty());
}

// As in the driver, while a launch goes on elsewhere.
TEST_CASE("a look that waits in the driver holds up nobody, and what it asks lives on") {
  Activity activity;
  std::promise<void> asked, answer;
  std::promise<std::thread::id> id_of_looker;
  const auto looker_id = id_of_looker.get_future().share();
  const auto answered = answer.get_future().share();
  auto event = std::make_shared<int>(0);
  const std::weak_ptr<int> alive = event;
  activity.enqueued("F stage 5 microbatch 0", [&asked, looker_id, answered, event = std::move(event)] {
    if (std::this_thread::get_id() != looker_id.get()) return true;
    asked.set_value();
    answered.wait();
    return true;
  });
  std::jthread looker([&] {
    id_of_looker.set_value(std::this_thread::get_id());
    activity.look_at_device();
  });
  asked.get_future().wait();
  // The rank's thread finds that the action is done, and drops it.
  auto enqueued = std::async(std::launch::async,
                             [&] { activity.enqueued("F stage 5 microbatch 1", [] { return false; }); });
  CHECK(enqueued.wait_for(60s) == std::future_status::ready);
  CHECK_FALSE(alive.expired());
  answer.set_value();
  looker.join();
  CHECK(alive.expired());
  CHECK(activity.state().text.find("F stage 5 microbatch 1") != std::string::npos);
}

}  // namespace
}  // namespace pptrain::comm

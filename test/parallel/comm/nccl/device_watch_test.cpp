// Decisions about a device that the test advances by hand, on a clock that the test sets.
#include "parallel/comm/nccl/device_watch.h"

#include <atomic>
#include <barrier>
#include <chrono>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "core/base/error.h"
#include "parallel/comm/wait_timeout.h"
#include "test/support/catch.h"
#include "test/support/ops.h"
#include "test/support/wait_until.h"

namespace pptrain::comm {
namespace {

using namespace std::chrono_literals;
using pptrain::test::contains_text;
using pptrain::test::wait_until;

// A stream with numbered operations; `ready` and `finished` are its progress.
struct FakeStream {
  int posted = 0;
  int ready = 0;     // operations that the device may begin
  int finished = 0;  // operations that are done
  int questions = 0;

  DeviceWatch::Operation operation(std::string description, std::chrono::milliseconds timeout = 10s) {
    const int number = posted++;
    return {.queue = this,
            .ready = [this, number] { return ready > number; },
            .finished =
                [this, number] {
                  ++questions;
                  return finished > number;
                },
            .timeout = timeout,
            .rank = 3,
            .description = std::move(description)};
  }
  void begin_all() { ready = posted; }
};

struct FakeGroup final : DeviceWatch::Group {
  std::optional<DeviceFailure> failure() override { return error; }
  void abort() noexcept override {
    if (on_abort) on_abort();
    ++aborts;
  }

  std::optional<DeviceFailure> error;
  std::function<void()> on_abort;
  std::atomic<int> aborts = 0;
};

// A watch that looks every half second of the test's clock.
struct World {
  std::string host_failure, place;
  DeviceWatch watch{
      {.host_failure = [this] { return host_failure; }, .device_place = [this] { return place; }}};
  DeviceWatch::Clock::time_point now{1h};

  // True once something has failed.
  bool pass(std::chrono::milliseconds time) {
    bool failed = watch.look(now);
    for (const auto end = now + time; now < end && !failed;) {
      now += 500ms;
      failed = watch.look(now);
    }
    return failed;
  }
  std::string failure() const { return watch.failure() ? watch.failure()->text : ""; }
};

TEST_CASE("the time of an operation runs from the moment when the device comes to it") {
  World world;
  FakeStream stream;
  world.watch.post(stream.operation("a message from rank 2"));
  world.watch.post(stream.operation("a message to rank 4"));
  stream.ready = 1;
  REQUIRE_FALSE(world.pass(9s));
  stream.finished = 1;  // the second has been waiting behind it
  stream.ready = 2;
  REQUIRE_FALSE(world.pass(9s));
  CHECK(world.pass(2s));
  CHECK_THAT(world.failure(), contains_text("rank 3 waited 10.0 s for a message to rank 4 on the GPU"));
  CHECK_THROWS_AS(world.watch.check(), WaitTimeout);
}

TEST_CASE("the host may be far ahead of a device that moves") {
  World world;
  FakeStream receives, sends;
  for (int i = 0; i < 20; ++i) world.watch.post(receives.operation("a message from rank 2"));
  for (int i = 0; i < 20; ++i) world.watch.post(sends.operation("a message to rank 4"));
  // The device needs 8 s to reach each operation and 8 s to finish it: 20 times 16 s are far above the
  // timeout.
  for (int i = 1; i <= 20; ++i) {
    REQUIRE_FALSE(world.pass(8s));
    receives.ready = i;
    REQUIRE_FALSE(world.pass(8s));
    receives.finished = i;
  }
  REQUIRE_FALSE(world.pass(8s));
  sends.ready = sends.finished = 20;
  CHECK_FALSE(world.pass(30s));
  CHECK_NOTHROW(world.watch.check());
}

TEST_CASE("a device that is stuck before all that is watched is found, with its place") {
  World world;
  FakeStream receives, sends;
  world.watch.post(receives.operation("a message from rank 2"));
  REQUIRE_FALSE(world.pass(5s));
  world.place = "F stage 5 microbatch 2";
  const auto ticket = world.watch.post(sends.operation("its message to be taken by rank 4"));
  world.watch.explain(ticket, "pipeline rank 3 waits to finish SEND_F stage 5 microbatch 2");
  receives.ready = receives.finished = 1;  // a sign of life: a whole timeout from here on
  REQUIRE_FALSE(world.pass(9s));
  CHECK(world.pass(2s));
  CHECK_THAT(world.failure(),
             contains_text("rank 3 waited 10.0 s for its GPU to come to its message to be taken by rank 4: "
                           "pipeline rank 3 waits to finish SEND_F stage 5 microbatch 2: what the GPU does"));
  CHECK_THAT(world.failure(), contains_text("; the GPU of rank 3 is in F stage 5 microbatch 2"));
  CHECK_THROWS_AS(world.watch.check(), WaitTimeout);
}

TEST_CASE("what the device has not come to is not late while it waits in an operation that it has begun") {
  World world;
  FakeStream receives, sends;
  world.watch.post(receives.operation("a message from rank 2", 60s));
  world.watch.post(sends.operation("its message to be taken by rank 4", 10s));
  receives.begin_all();
  REQUIRE_FALSE(world.pass(50s));
  receives.finished = 1;
  REQUIRE_FALSE(world.pass(9s));  // now its own time runs
  CHECK(world.pass(2s));
  CHECK_THAT(world.failure(), contains_text("to come to its message to be taken by rank 4"));
}

TEST_CASE("a late operation is reported in the words of who waits for it") {
  World world;
  FakeStream stream;
  const auto ticket = world.watch.post(stream.operation("a message from rank 2"));
  stream.begin_all();
  REQUIRE_FALSE(world.pass(5s));
  world.watch.explain(ticket, "pipeline rank 2 waits for RECV_F stage 5 microbatch 7");
  CHECK(world.pass(6s));
  CHECK_THAT(world.failure(),
             contains_text("a message from rank 2 on the GPU: pipeline rank 2 waits for RECV_F "
                           "stage 5 microbatch 7; a peer is stuck or slower"));
}

TEST_CASE("time in which the process stood still does not count on the device either") {
  World world;
  FakeStream stream;
  world.watch.post(stream.operation("a message from rank 2"));
  stream.begin_all();
  REQUIRE_FALSE(world.pass(5s));
  world.now += 1h;
  REQUIRE_FALSE(world.watch.look(world.now));
  REQUIRE_FALSE(world.pass(4s));
  CHECK(world.pass(2s));
}

TEST_CASE("a look asks a stream for its oldest operation alone") {
  World world;
  FakeStream stream;
  for (int i = 0; i < 100; ++i) world.watch.post(stream.operation("a message from rank 2"));
  world.watch.look(world.now);
  CHECK(stream.questions == 1);
  stream.finished = stream.ready = 10;
  world.watch.check();
  CHECK(stream.questions == 12);  // the ten finished ones, and one that is not
}

TEST_CASE("tensors of abandoned operations live until the device is done") {
  World world;
  FakeStream stream;
  at::Tensor tensor = at::zeros({4});
  const c10::weak_intrusive_ptr<c10::TensorImpl> seen(tensor.getIntrusivePtr());
  world.watch.keep(world.watch.post(stream.operation("a message to rank 2")), {std::move(tensor)});
  stream.ready = 1;
  world.watch.check();
  world.watch.look(world.now);
  CHECK_FALSE(seen.expired());
  stream.finished = 1;
  SECTION("seen by the rank's thread") {
    world.watch.check();
  }
  SECTION("seen by the thread that watches") {
    world.watch.look(world.now);
  }
  CHECK(seen.expired());
}

TEST_CASE("a failure that the host knows ends the device's waits, in its words") {
  World world;
  FakeStream stream;
  FakeGroup group;
  world.watch.add(group);
  world.watch.post(stream.operation("a message from rank 2"));
  stream.begin_all();
  REQUIRE_FALSE(world.pass(1s));
  world.host_failure = "rank 1 failed: out of memory";
  CHECK(world.watch.look(world.now));
  CHECK_THROWS_AS(world.watch.check(), PeerFailure);
  CHECK_THROWS_WITH(world.watch.throw_if_failed(), "rank 1 failed: out of memory");
  world.watch.remove(group);
  CHECK(group.aborts == 1);
}

TEST_CASE("an error of one group aborts all, and is told by its kind") {
  World world;
  FakeGroup first, second;
  world.watch.add(first);
  world.watch.add(second);
  REQUIRE_FALSE(world.pass(1s));
  const auto [kind, text] = GENERATE(
      table<DeviceFailure::Kind, std::string>({{DeviceFailure::Kind::peer, "NCCL lost a peer"},
                                               {DeviceFailure::Kind::fault, "unhandled system error"}}));
  second.error = DeviceFailure{kind, text};
  CHECK(world.watch.look(world.now));
  if (kind == DeviceFailure::Kind::peer) CHECK_THROWS_AS(world.watch.check(), PeerFailure);
  CHECK_THROWS_WITH(world.watch.check(), text);
  world.watch.fail({DeviceFailure::Kind::timeout, "later"});  // the first failure counts
  CHECK(world.failure() == text);
  for (FakeGroup* group : {&first, &second}) {
    world.watch.remove(*group);
    CHECK(group->aborts == 1);
  }
  FakeGroup late;
  CHECK_THROWS_WITH(world.watch.add(late), text);
}

// The kernels of one communicator may be queued behind the other's kernels.
TEST_CASE("groups are aborted at once, not one after another") {
  World world;
  std::barrier both(2);
  FakeGroup first, second;
  first.on_abort = second.on_abort = [&] { both.arrive_and_wait(); };
  world.watch.add(first);
  world.watch.add(second);
  world.watch.fail({DeviceFailure::Kind::fault, "boom"});
  world.watch.remove(first);  // waits for its abort
  world.watch.remove(second);
  CHECK(first.aborts == 1);
  CHECK(second.aborts == 1);
}

TEST_CASE("a device that fails is a failure of the rank") {
  World world;
  world.watch.post({.queue = &world,
                    .ready = [] { return true; },
                    .finished = []() -> bool { throw Error("an illegal memory access was encountered"); },
                    .timeout = 10s,
                    .rank = 3,
                    .description = "a message from rank 2"});
  CHECK(world.watch.look(world.now));
  CHECK_THROWS_WITH(world.watch.throw_if_failed(), contains_text("illegal memory access"));
}

// --- the thread: it looks by itself, and ends a process that does not come back ---

// The message and the actions of a watchdog at its end.
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

}  // namespace
}  // namespace pptrain::comm

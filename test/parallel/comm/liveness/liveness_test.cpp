// Heartbeats between thread ranks. All are alive; some behave as dead.
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/base/error.h"
#include "core/net/socket.h"
#include "parallel/comm/agreement.h"
#include "parallel/comm/liveness/heartbeat.h"
#include "parallel/comm/thread/thread_communicator.h"
#include "parallel/comm/wait_timeout.h"
#include "test/support/catch.h"
#include "test/support/wait_until.h"

namespace pptrain::comm {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using pptrain::test::contains_text;
using pptrain::test::wait_until;

constexpr std::chrono::milliseconds limit = 700ms;

// The effects of a world's heartbeats, by rank.
struct Outcome {
  std::mutex mutex;
  std::vector<std::string> said;       // by any rank
  std::vector<int> ended;              // exit codes; -1: not ended
  std::vector<Clock::duration> after;  // time from the event
  Clock::time_point event;
};

struct LiveRank {
  Activity activity;
  std::atomic<bool> ended = false;
};

// Sends a few bytes; a new connection has room for them.
void send_to(const net::Socket& neighbour, const std::string& bytes) {
  if (::send(neighbour.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(bytes.size()))
    throw Error("a neighbour takes no data");
}

// Runs `size` ranks with heartbeats. Rank `dead` runs `die`, which gets the sockets of its ring.
template <typename Die>
void run_with_dead_rank(int size, int dead, Outcome& outcome, Die&& die) {
  outcome.ended.assign(static_cast<size_t>(size), -1);
  outcome.after.assign(static_cast<size_t>(size), 0ms);
  run_thread_ranks(size, [&](Communicator& world) {
    const int r = world.rank();
    LiveRank rank;
    rank.activity.set(ActivityKind::work, "F stage " + std::to_string(r) + " microbatch 9");
    if (r == dead) {
      Ring ring = make_ring(world, 5s);
      if (!agree(world, ring.fault, [](const std::string&) {})) throw Error(ring.fault);
      const auto beat = encode_beat(rank.activity.state());
      for (const net::Socket* socket : {&ring.previous, &ring.next}) send_to(*socket, beat);
      world.barrier();
      outcome.event = Clock::now();
      die(ring);
      wait_until([&] {
        const std::lock_guard lock(outcome.mutex);
        return std::ranges::count(outcome.ended, -1) == 1;
      });
      return;
    }
    Heartbeat::Options options;
    options.limit = limit;
    options.say = [&](const std::string& text) {
      const std::lock_guard lock(outcome.mutex);
      outcome.said.push_back(text);
    };
    options.end = [&](int code) {
      const std::lock_guard lock(outcome.mutex);
      outcome.ended[r] = code;
      outcome.after[r] = Clock::now() - outcome.event;
      rank.ended = true;
    };
    const auto heartbeat = Heartbeat::start(world, rank.activity, options, [](const std::string&) {});
    if (!heartbeat) throw Error("no heartbeats");
    world.barrier();
    wait_until([&] { return rank.ended.load(); });
  });
}

void check_outcome(const Outcome& outcome, int dead, Clock::duration within) {
  CHECK(outcome.said.size() == 1);
  for (size_t r = 0; r < outcome.ended.size(); ++r) {
    if (static_cast<int>(r) == dead) continue;
    CAPTURE(r);
    CHECK(outcome.ended[r] == 1);
    CHECK(outcome.after[r] < within);
  }
}

TEST_CASE("a rank that is gone ends all others at once, and one of them says so", "[clock]") {
  const int size = GENERATE(2, 3, 5);
  const int dead = GENERATE(0, 1);
  CAPTURE(size, dead);
  Outcome outcome;
  run_with_dead_rank(size, dead, outcome, [](Ring& ring) {
    ring.previous.close();
    ring.next.close();
  });
  check_outcome(outcome, dead, 3s);
  REQUIRE(outcome.said.size() == 1);
  CHECK_THAT(outcome.said[0], contains_text("rank " + std::to_string(dead) + " (host ") &&
                                  contains_text("is gone") &&
                                  contains_text("F stage " + std::to_string(dead) + " microbatch 9"));
}

TEST_CASE("a rank that falls silent is found after the limit", "[clock]") {
  Outcome outcome;
  run_with_dead_rank(4, 2, outcome, [](Ring&) {});
  check_outcome(outcome, 2, limit + 3s);
  REQUIRE(outcome.said.size() == 1);
  CHECK_THAT(outcome.said[0], contains_text("rank 2 (host ") && contains_text("no sign of life for 0.7 s") &&
                                  contains_text("its host answers") &&
                                  contains_text("F stage 2 microbatch 9"));
  for (const int r : {0, 1, 3}) CHECK(outcome.after[r] > limit - limit / 14 - 50ms);
}

TEST_CASE("a rank that sends nonsense is not listened to", "[clock]") {
  Outcome outcome;
  run_with_dead_rank(3, 1, outcome, [](Ring& ring) {
    const std::string nonsense(100, 'x');
    send_to(ring.next, nonsense);
  });
  check_outcome(outcome, 1, 3s);
  REQUIRE(outcome.said.size() == 1);
  CHECK_THAT(outcome.said[0], contains_text("rank 1 ") && contains_text("make no sense"));
}

// A rank prints its own failure. A rank that fails after another rank is told to be silent.
TEST_CASE("a failure is told to all, and the first one counts", "[clock]") {
  std::mutex mutex;
  std::vector<int> ended, first;
  std::vector<std::string> said;
  run_thread_ranks(4, [&](Communicator& world) {
    LiveRank rank;
    Heartbeat::Options options;
    options.say = [&](const std::string& text) {
      const std::lock_guard lock(mutex);
      said.push_back(text);
    };
    options.end = [&](int code) {
      const std::lock_guard lock(mutex);
      ended.push_back(code);
      rank.ended = true;
    };
    const auto heartbeat = Heartbeat::start(world, rank.activity, options, [](const std::string&) {});
    world.barrier();
    if (world.rank() < 2 && heartbeat->fail("rank 0: boom", 2)) {
      const std::lock_guard lock(mutex);
      first.push_back(world.rank());
      return;
    }
    wait_until([&] { return rank.ended.load(); });
  });
  CHECK(first == std::vector<int>{0});
  CHECK(ended == std::vector<int>{2, 2, 2});
  CHECK(said.empty());
}

TEST_CASE("ranks that take leave at different times are not missed", "[clock]") {
  std::atomic<int> ends = 0;
  run_thread_ranks(4, [&](Communicator& world) {
    Activity activity;
    Heartbeat::Options options;
    options.limit = 200ms;
    options.say = [&](const std::string&) { ++ends; };
    options.end = [&](int) { ++ends; };
    auto heartbeat = Heartbeat::start(world, activity, options, [](const std::string&) {});
    world.barrier();
    std::this_thread::sleep_for(world.rank() * 250ms);
    heartbeat.reset();
  });
  CHECK(ends == 0);
}

TEST_CASE("a roll call tells what every rank does", "[clock]") {
  std::mutex mutex;
  run_thread_ranks(5, [&](Communicator& world) {
    Activity activity;
    activity.set(world.rank() == 3 ? ActivityKind::work : ActivityKind::wait,
                 "thing " + std::to_string(world.rank()));
    const auto heartbeat = Heartbeat::start(world, activity, {}, [](const std::string&) {});
    world.barrier();
    const std::vector<RankState> states = heartbeat->roll_call();
    world.barrier();
    const std::lock_guard lock(mutex);
    REQUIRE(states.size() == 5);
    for (int r = 0; r < 5; ++r) {
      CHECK(states[r].rank == r);
      CHECK(states[r].state.text == "thing " + std::to_string(r));
      CHECK(states[r].state.doing == (r == 3 ? ActivityKind::work : ActivityKind::wait));
    }
    const std::string text = describe_others(states, 0, 2);
    CHECK_THAT(text, contains_text("is in thing 3 for") && contains_text("waits for thing 1 for") &&
                         contains_text("2 more ranks wait"));
    CHECK(text.find("thing 3") < text.find("thing 1"));
  });
}

TEST_CASE("a summons comes to every rank once, however many ranks send one, and whenever a rank listens") {
  std::array<std::atomic<int>, 5> heard{};
  run_thread_ranks(5, [&](Communicator& world) {
    Activity activity;
    const auto heartbeat = Heartbeat::start(world, activity, {}, [](const std::string&) {});
    std::atomic<int>& mine = heard[static_cast<size_t>(world.rank())];
    const auto listen = [&] { heartbeat->on_summons([&mine] { ++mine; }); };
    if (world.rank() != 4) listen();
    world.barrier();
    if (world.rank() == 1 || world.rank() == 3) heartbeat->summon();
    if (world.rank() == 1) heartbeat->summon();
    if (world.rank() == 4) {
      wait_until([&] { return heard[0] > 0 && heard[1] > 0; });  // the summons has already passed this rank
      listen();
    }
    wait_until([&] { return mine > 0; });
    world.barrier();
    heartbeat->on_summons({});
  });
  for (const auto& count : heard) CHECK(count == 1);
}

TEST_CASE("heartbeats that nobody can read are no frames") {
  const Verdict verdict{.rank = 3, .code = 2, .said = true, .text = "boom"};
  std::string stream;
  const std::string bytes =
      encode(verdict) + encode_beat({ActivityKind::wait, "RECV_F stage 1 microbatch 2", 0.5});
  std::vector<Frame> frames;
  for (const char byte : bytes) {
    stream += byte;
    while (auto frame = take_frame(stream)) frames.push_back(*frame);
  }
  REQUIRE(frames.size() == 2);
  const auto decoded = decode_verdict(frames[0].body);
  REQUIRE(decoded);
  CHECK(decoded->rank == 3);
  CHECK(decoded->code == 2);
  CHECK(decoded->said);
  CHECK(decoded->text == "boom");
  const auto beat = decode_beat(frames[1].body);
  REQUIRE(beat);
  CHECK(beat->text == "RECV_F stage 1 microbatch 2");
  // Every shorter or changed body is refused or is another valid one; none reads beyond its end.
  for (size_t size = 0; size < frames[0].body.size(); ++size)
    CHECK_FALSE(decode_verdict(std::string_view(frames[0].body).substr(0, size)));
  CHECK_FALSE(decode_beat(frames[0].body));
  CHECK_FALSE(decode_verdict(frames[0].body + "x"));
  std::string nonsense = "GET / HTTP/1.1\r\n";
  CHECK_THROWS_AS(take_frame(nonsense), Error);
  CHECK(encode_beat({ActivityKind::work, std::string(100'000, 'x'), 0}).size() < 5000);
}

TEST_CASE("a rank on another machine is reached at the one address that it names") {
  const auto address = [](int rank) { return "127.0.0." + std::to_string(10 + rank); };
  std::mutex mutex;
  run_thread_ranks(3, [&](Communicator& world) {
    const int r = world.rank();
    const Ring ring = make_ring(
        world, 5s, [&] { return address(r); }, "machine " + std::to_string(r));
    const std::lock_guard lock(mutex);
    CHECK(ring.fault.empty());
    CHECK(net::peer_address(ring.next) == address((r + 1) % 3));
  });
}

TEST_CASE("an address that a host has not leaves the job without heartbeats, and is said") {
  std::mutex mutex;
  std::string warning;
  run_thread_ranks(2, [&](Communicator& world) {
    Activity activity;
    Heartbeat::Options options;
    if (world.rank() == 1) options.address = []() -> std::string { throw Error("no interface ib7 here"); };
    const auto heartbeat = Heartbeat::start(world, activity, options, [&](const std::string& text) {
      const std::lock_guard lock(mutex);
      warning += text;
    });
    const std::lock_guard lock(mutex);
    CHECK(heartbeat == nullptr);
  });
  CHECK_THAT(warning, contains_text("no heartbeats") && contains_text("no interface ib7 here"));
}

// The parent of a vfork waits for its child in the very state in which a thread waits for a dead disk.
TEST_CASE("a thread that hangs in the kernel is told from one that waits or computes", "[clock]") {
  std::atomic<pid_t> stuck = 0, asleep = 0, busy = 0;
  std::atomic<bool> stop = false;
  std::array<int, 2> pipe_ends{};
  REQUIRE(pipe(pipe_ends.data()) == 0);
  std::jthread hangs([&] {
    stuck = static_cast<pid_t>(syscall(SYS_gettid));
    const pid_t child = vfork();
    if (child == 0) {
      char byte = 0;
      static_cast<void>(!read(pipe_ends[0], &byte, 1));
      _exit(0);
    }
    waitpid(child, nullptr, 0);
  });
  std::jthread sleeps([&] {
    asleep = static_cast<pid_t>(syscall(SYS_gettid));
    while (!stop) std::this_thread::sleep_for(1s);
  });
  std::jthread computes([&] {
    busy = static_cast<pid_t>(syscall(SYS_gettid));
    while (!stop) {
    }
  });
  wait_until([&] { return stuck != 0 && asleep != 0 && busy != 0; });
  KernelSleep of_stuck(stuck), of_asleep(asleep), of_busy(busy);
  std::this_thread::sleep_for(100ms);
  const auto start = Clock::now();
  CHECK(of_stuck.look(start) == 0ms);
  std::this_thread::sleep_for(300ms);
  const auto later = Clock::now();
  CHECK(of_stuck.look(later) >= 290ms);
  for (KernelSleep* other : {&of_asleep, &of_busy}) {
    other->look(start);
    CHECK(other->look(later) == 0ms);
  }
  of_stuck.forget();
  CHECK(of_stuck.look(later) == 0ms);
  stop = true;
  REQUIRE(write(pipe_ends[1], "x", 1) == 1);
  hangs.join();
  for (const int end : pipe_ends) close(end);
}

TEST_CASE("a deadline does not count the time in which the process stood still") {
  const auto start = Clock::now();
  PatientDeadline deadline(5s, start);
  CHECK(deadline.next_look() == start + 1s);
  CHECK_FALSE(deadline.passed(start + 1s));
  CHECK_FALSE(deadline.passed(start + 101s));  // the process stood still for 100 s
  CHECK_FALSE(deadline.passed(start + 104s));
  CHECK(deadline.next_look() == start + 105s);
  CHECK(deadline.passed(start + 105s));
  PatientDeadline never(std::chrono::milliseconds::max(), start);
  CHECK_FALSE(never.passed(start + 1000h));
}

TEST_CASE("an activity tells how far the device is behind the host") {
  Activity activity;
  int done = 0;
  const auto enqueue = [&](int number, const std::string& text) {
    activity.set(ActivityKind::work, text);
    activity.enqueued(text, [&done, number] { return done > number; });
  };
  CHECK(activity.look_at_device().empty());
  enqueue(0, "F stage 5 microbatch 0");
  enqueue(1, "F stage 5 microbatch 1");
  CHECK(activity.state().text == "F stage 5 microbatch 1");  // no look at the device yet
  CHECK(activity.look_at_device() == "F stage 5 microbatch 0");
  CHECK(activity.state().text == "F stage 5 microbatch 1 (its GPU: F stage 5 microbatch 0)");
  {
    const ActivityScope waiting(&activity, ActivityKind::wait, "RECV_F stage 5 microbatch 2");
    CHECK_THAT(describe(activity.state()),
               contains_text("waits for RECV_F stage 5 microbatch 2 (its GPU: F stage 5 microbatch 0) for"));
  }
  // The scope has restored the host's activity; the device's is unchanged.
  CHECK(activity.state().text == "F stage 5 microbatch 1 (its GPU: F stage 5 microbatch 0)");
  done = 1;
  CHECK(activity.look_at_device() == "F stage 5 microbatch 1");
  CHECK(activity.state().text == "F stage 5 microbatch 1");  // the device is where the host is
  done = 2;
  CHECK(activity.look_at_device().empty());
}

// The look waits as in the driver, while another thread launches.
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

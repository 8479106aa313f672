#include "parallel/comm/thread/thread_communicator.h"

#include <ATen/Parallel.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>
#include <string>
#include <thread>

#include "core/base/error.h"
#include "parallel/comm/split.h"
#include "test/parallel/comm/exercise.h"
#include "test/support/catch.h"
#include "test/support/not_run.h"
#include "test/support/ops.h"

namespace pptrain::comm {
namespace {

using Clock = std::chrono::steady_clock;
using pptrain::test::contains_text;

TEST_CASE("threads do what a transport must") {
  at::set_num_threads(1);
  const int size = GENERATE(2, 3, 4, 5);
  CAPTURE(size);
  REQUIRE_NOTHROW(run_thread_ranks(size, test::exercise));
}

TEST_CASE("sums and gathers of more ranks, on one host and on several") {
  at::set_num_threads(1);
  const int size = GENERATE(7, 9);
  CAPTURE(size);
  REQUIRE_NOTHROW(run_thread_ranks(size, test::exercise_collectives));
}

TEST_CASE("a world of one thread needs no partner") {
  run_thread_ranks(1, [](Communicator& world) {
    world.barrier();
    const at::Tensor tensor = at::zeros({3});
    world.all_reduce_sum(tensor);
    world.broadcast(tensor, 0);
    if (all_reduce_sum(world, std::vector<double>{2.5})[0] != 2.5) throw Error("sum of one");
    test::exercise_collectives(world);
  });
}

TEST_CASE("a failed rank ends the sums that are under way", "[clock]") {
  std::atomic<int> woken = 0;
  const auto start = Clock::now();
  const auto run = [&] {
    run_thread_ranks(3, [&](Communicator& world) {
      if (world.rank() == 2) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        throw UsageError("no such file");
      }
      const at::Tensor tensor = at::zeros({100'000});
      const auto first = world.iall_reduce_sum(tensor);
      const auto second = world.iall_reduce_sum(tensor);
      for (const auto& work : {first.get(), second.get()}) {
        try {
          work->wait([] { return "step 7"; });
        } catch (const PeerFailure& e) {
          const std::string message = e.what();
          if (message.find("no such file: step 7") != std::string::npos) ++woken;
        }
      }
    });
  };
  REQUIRE_THROWS_AS(run(), UsageError);
  REQUIRE(woken == 4);
  REQUIRE(Clock::now() - start < std::chrono::seconds(5));
}

TEST_CASE("a rank that fails does not wait for its own sums", "[clock]") {
  const auto start = Clock::now();
  const auto run = [] {
    run_thread_ranks(2, [](Communicator& world) {
      const auto apart = world.duplicate();
      if (world.rank() == 1) return;
      const auto work = apart->iall_reduce_sum(at::zeros({100'000}));
      throw UsageError("a wrong job");
    });
  };
  REQUIRE_THROWS_AS(run(), Error);
  REQUIRE(Clock::now() - start < std::chrono::seconds(5));
}

TEST_CASE("a sum that a rank does not take part in ends with the timeout and says what for") {
  const auto world = make_thread_world(2);
  const auto& first = world[0];
  first->set_timeout(std::chrono::milliseconds(100));
  const auto work = first->iall_reduce_sum(at::zeros({100'000}));
  REQUIRE_FALSE(work->wait_for(std::chrono::milliseconds(1)));
  REQUIRE_THROWS_WITH(work->wait([] { return "REDUCE_GRAD stage 1"; }),
                      contains_text("iall_reduce_sum") && contains_text("waited 0.1 s") &&
                          contains_text("REDUCE_GRAD stage 1"));
}

TEST_CASE("parts that do not fit each other are an error on both sides") {
  const auto world = make_thread_world(2);
  const auto& first = world[0];
  const auto& second = world[1];
  const std::vector<int64_t> none{0, 0};
  const std::vector<int64_t> three_of_first{3, 0};
  const auto sends_none = first->iall_to_all(at::zeros({0}), none, at::zeros({0}), none);
  const auto wants_three = second->iall_to_all(at::zeros({3}), three_of_first, at::zeros({0}), none);
  REQUIRE_THROWS_WITH(sends_none->wait({}), contains_text("0 x Float") && contains_text("3 x Float"));
  REQUIRE_THROWS_WITH(wants_three->wait({}), contains_text("does not fit"));
}

TEST_CASE("a rank that throws wakes all others at once, and its exception is the one to see", "[clock]") {
  std::atomic<int> woken = 0;
  const auto start = Clock::now();
  const auto run = [&] {
    run_thread_ranks(4, [&](Communicator& world) {
      const auto pair = split(world, [](int rank) { return rank / 2; });
      if (world.rank() == 2) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        throw UsageError("no such file");
      }
      try {
        // Ranks 0 and 1 wait for each other, rank 3 for the failing one.
        const at::Tensor tensor = at::zeros({1});
        pair->irecv(tensor, 1 - pair->rank())->wait({});
      } catch (const PeerFailure& e) {
        if (std::string(e.what()).find("rank 2 failed: no such file") != std::string::npos) ++woken;
        throw;
      }
    });
  };
  REQUIRE_THROWS_AS(run(), UsageError);
  REQUIRE(woken == 3);
  REQUIRE(Clock::now() - start < std::chrono::seconds(5));
}

// In its own process, as a user with a limit of a few threads.
TEST_CASE("a thread that cannot be started ends the ranks that have begun") {
  if (getuid() != 0) return pptrain::test::not_run("only root can become a user who has no processes");
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const rlimit three{.rlim_cur = 3, .rlim_max = 3};  // this one, and two ranks
    constexpr uid_t nobody_else = 54'321;
    if (setresuid(nobody_else, nobody_else, nobody_else) != 0 || setrlimit(RLIMIT_NPROC, &three) != 0)
      _exit(2);
    const auto start = Clock::now();
    try {
      run_thread_ranks(4, [](Communicator& world) { world.irecv(at::zeros({1}), 3)->wait({}); });
    } catch (const std::exception& e) {
      const bool said = std::string(e.what()).find("cannot start the thread of rank 2") != std::string::npos;
      _exit(said && Clock::now() - start < std::chrono::seconds(10) ? 0 : 3);
    }
    _exit(4);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  REQUIRE(WEXITSTATUS(status) == 0);
}

TEST_CASE("a later call sees the failure too") {
  const auto world = make_thread_world(2);
  const auto& first = world[0];
  const auto& second = world[1];
  const at::Tensor tensor = at::zeros({1});
  const auto work = first->irecv(tensor, 1);
  REQUIRE_FALSE(work->done());
  REQUIRE(first->failure().empty());
  second->abort("boom");
  REQUIRE_THAT(first->failure(), contains_text("rank 1 failed: boom"));
  REQUIRE_THROWS_AS(work->done(), PeerFailure);
  REQUIRE_THROWS_WITH(first->isend(tensor, 1), contains_text("rank 1 failed: boom"));
}

TEST_CASE("a wait for a silent thread ends with the timeout and says what for") {
  std::mutex mutex;
  std::vector<std::string> messages;
  run_thread_ranks(2, [&](Communicator& world) {
    const std::string message = test::provoke_timeout(world);
    const std::lock_guard lock(mutex);
    messages.push_back(message);
  });
  REQUIRE(messages.size() == 2);
  for (const std::string& message : messages) {
    REQUIRE_THAT(message, contains_text("RECV_B stage 5 microbatch 7") && contains_text("waited 0.1 s"));
  }
}

TEST_CASE("a message of another size or type than its receive is an error on both sides") {
  const auto world = make_thread_world(2);
  const auto& sender = world[0];
  const auto& receiver = world[1];
  const auto send = sender->isend(at::zeros({3}), 1);
  const auto receive = receiver->irecv(at::zeros({4}), 0);
  REQUIRE_THROWS_WITH(send->wait({}), contains_text("3 x Float") && contains_text("4 x Float"));
  REQUIRE_THROWS_WITH(receive->wait({}), contains_text("does not fit"));
}

TEST_CASE("texts and values of more ranks than a star has come whole to any root") {
  at::set_num_threads(1);
  run_thread_ranks(13, [](Communicator& world) {
    const auto text_of = [](int rank) {
      return std::string(rank % 4 == 1 ? 0 : static_cast<size_t>(3 * rank + 1),
                         static_cast<char>('a' + rank));
    };
    const auto check = [&](const std::vector<std::string>& all, bool here) {
      if (all.size() != (here ? 13U : 0U)) throw Error("texts in another place");
      for (size_t r = 0; r < all.size(); ++r)
        if (all[r] != text_of(static_cast<int>(r))) throw Error("another rank's text");
    };
    for (const int root : {0, 5, 12})
      check(gather_strings(world, text_of(world.rank()), root), world.rank() == root);
    check(all_gather_strings(world, text_of(world.rank())), true);
    const std::vector<double> mine(static_cast<size_t>(world.rank()), world.rank() + 0.5);
    const auto all = gather(world, mine, 5);
    for (size_t r = 0; r < all.size(); ++r)
      if (all[r] != std::vector<double>(r, static_cast<double>(r) + 0.5))
        throw Error("another rank's values");
  });
}

}  // namespace
}  // namespace pptrain::comm

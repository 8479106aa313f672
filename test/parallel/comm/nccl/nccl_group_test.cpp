// NcclGroup's reactions to NCCL's answers, with a fake NCCL and a real watchdog.
#include "parallel/comm/nccl/nccl_group.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "core/base/error.h"
#include "parallel/comm/nccl/nccl_collectives.h"
#include "parallel/comm/wait_timeout.h"
#include "test/parallel/comm/nccl/fake_nccl.h"
#include "test/support/catch.h"
#include "test/support/wait_until.h"

namespace pptrain::comm {
namespace {

using namespace std::chrono_literals;
using pptrain::test::contains_text;
using pptrain::test::wait_until;
using test::FakeNccl;
using Calls = std::vector<std::string>;

constexpr std::chrono::milliseconds patient{600'000};

struct Job {
  test::FakeNcclScope nccl;
  std::mutex mutex;
  std::string host_failure;
  WatchdogPtr watchdog = make_watchdog(1ms);

  WatchdogPtr make_watchdog(std::chrono::milliseconds look_every) {
    DeviceWatch::Hooks hooks;
    hooks.host_failure = [this] {
      const std::lock_guard lock(mutex);
      return host_failure;
    };
    DeviceWatchdog::Options options{.look_every = look_every, .grace = 10h, .on_thread = {}};
    return std::make_shared<DeviceWatchdog>(std::move(hooks), std::move(options));
  }
  std::unique_ptr<NcclGroup> make_group(std::chrono::milliseconds timeout = patient) {
    return std::make_unique<NcclGroup>(watchdog, new_nccl_id(), 0, 2,
                                       NcclGroup::Options{.job_rank = 4,
                                                          .name = "the NCCL group of ranks 4, 5",
                                                          .device = 0,
                                                          .timeout = timeout,
                                                          .max_ctas = 2});
  }
  // Begins a call as a transfer does; NCCL returns `result`.
  void enqueue(NcclGroup& group, std::chrono::milliseconds timeout = patient,
               ncclResult_t result = ncclInProgress) {
    group.enqueue("all_gather", timeout, [&](ncclComm_t comm) { return nccl->begin(comm, result); });
  }
  void set_state(ncclResult_t state, int in_progress = 0) {
    nccl->locked([&](FakeNccl& fake) {
      fake.state = state;
      fake.in_progress = in_progress;
      return 0;
    });
  }
  Calls calls() {
    return nccl->locked([](const FakeNccl& fake) { return fake.calls; });
  }
  void check_end() {
    CHECK(nccl->alive == 0);
    CHECK(nccl->misused == "");
  }
};

TEST_CASE("a group is set up without blocking, and ends in order") {
  Job job;
  job.nccl->in_progress = 50;
  {
    const auto group = job.make_group();
    CHECK(job.nccl->locked([](const FakeNccl& fake) { return fake.questions; }) >= 51);
    CHECK(job.nccl->config.blocking == 0);
    CHECK(job.nccl->config.maxCTAs == 2);
    for (int i = 0; i < 20; ++i) job.enqueue(*group);
  }
  Calls expected{"init"};
  expected.insert(expected.end(), 20, "call");
  expected.insert(expected.end(), {"finalize", "destroy"});
  CHECK(job.calls() == expected);
  job.check_end();
}

TEST_CASE("a call returns when its work is on the stream, and not before") {
  Job job;
  const auto group = job.make_group();
  const int before = job.nccl->locked([](FakeNccl& fake) {
    fake.in_progress = 1000;
    return fake.questions;
  });
  job.enqueue(*group);
  CHECK(job.nccl->locked([](const FakeNccl& fake) { return fake.questions; }) > before + 1000);
}

TEST_CASE("a set-up to which the others do not come ends with the timeout") {
  Job job;
  job.nccl->in_progress = FakeNccl::for_ever;
  CHECK_THROWS_MATCHES(job.make_group(100ms), WaitTimeout,
                       Catch::Matchers::Message("rank 4 waited 0.1 s for the set-up (the NCCL group of ranks "
                                                "4, 5); a peer is stuck or slower than the timeout"));
  CHECK(job.calls() == Calls{"init", "abort"});
  job.check_end();
}

TEST_CASE("a set-up that NCCL refuses is an error in its words") {
  Job job;
  SECTION("at once") {
    job.nccl->init_result = ncclSystemError;
  }
  SECTION("later") {
    job.nccl->state = ncclSystemError;
  }
  job.nccl->last_error = "no route to host";
  CHECK_THROWS_WITH(job.make_group(),
                    contains_text("unhandled system error: no route to host") && contains_text("ranks 4, 5"));
  REQUIRE(job.watchdog->watch().failure());
  CHECK_THAT(job.watchdog->watch().failure()->text, contains_text("no route to host"));
  job.check_end();
}

TEST_CASE("an error that a call brings ends all groups, and is told by its kind") {
  Job job;
  const auto first = job.make_group();
  const auto second = job.make_group();
  const bool at_once = GENERATE(true, false);
  const ncclResult_t error = GENERATE(ncclRemoteError, ncclSystemError);
  if (!at_once) {
    job.watchdog->stop();  // the rank's own thread sees it
    job.set_state(error);
  }
  const auto call = [&] { job.enqueue(*first, patient, at_once ? error : ncclInProgress); };
  if (error == ncclRemoteError) {
    CHECK_THROWS_AS(call(), PeerFailure);
    CHECK_THAT(job.watchdog->watch().failure()->text, contains_text("NCCL lost a peer"));
  } else {
    CHECK_THROWS_AS(call(), Error);
  }
  CHECK_THROWS_AS(job.enqueue(*second), Error);
  CHECK(wait_until([&] { return job.nccl->locked([](const FakeNccl& fake) { return fake.alive; }) == 0; }));
  job.check_end();
}

TEST_CASE("what NCCL finds out between two calls ends the next one") {
  Job job;
  const auto group = job.make_group();
  job.set_state(ncclRemoteError);
  REQUIRE(wait_until([&] { return job.watchdog->watch().failure().has_value(); }));
  CHECK_THROWS_AS(job.enqueue(*group), PeerFailure);
  CHECK_THAT(job.watchdog->watch().failure()->text,
             contains_text("rank 4, the NCCL group of ranks 4, 5: NCCL lost a peer: remote process exited"));
}

TEST_CASE("a call that does not end ends with the host's failure, or with its own timeout") {
  Job job;
  const auto group = job.make_group();
  job.set_state(ncclSuccess, FakeNccl::for_ever);
  SECTION("the host's") {
    const std::jthread host([&] {
      wait_until([&] { return job.calls().back() == "call"; });
      const std::lock_guard lock(job.mutex);
      job.host_failure = "rank 5 failed: boom";
    });
    CHECK_THROWS_WITH(job.enqueue(*group), "rank 5 failed: boom");
  }
  SECTION("its own") {
    CHECK_THROWS_AS(job.enqueue(*group, 20ms), WaitTimeout);
  }
}

TEST_CASE("an end that does not come, or brings an error, is an abort") {
  Job job;
  const auto keep = job.make_group();
  SECTION("it does not come") {
    auto group = job.make_group(1s);  // the set-up has this time too, on a busy machine
    job.set_state(ncclSuccess, FakeNccl::for_ever);
    group.reset();
    CHECK(job.watchdog->watch().failure()->kind == DeviceFailure::Kind::timeout);
  }
  SECTION("an error once all is done") {
    job.watchdog->stop();
    auto group = job.make_group();
    job.nccl->state_after_end = ncclSystemError;
    group.reset();
    CHECK(job.calls() == Calls{"init", "init", "finalize", "abort"});
  }
  SECTION("an exception unwinds") {
    const auto fail = [&] {
      const auto group = job.make_group();
      throw std::runtime_error("out of memory");
    };
    CHECK_THROWS(fail());
    CHECK_THAT(job.watchdog->watch().failure()->text, contains_text("rank 4 has given up"));
  }
  const Calls calls = job.calls();
  CHECK(std::ranges::count(calls, "destroy") == 0);
  CHECK(std::ranges::count(calls, "abort") >= 1);
  CHECK(job.nccl->locked([](const FakeNccl& fake) { return fake.misused; }) == "");
}

TEST_CASE("a group tries its all-gathers at all sizes, within bounded scratch") {
  const int ranks = GENERATE(2, 3, 8, 1000, 100'000'000);
  CAPTURE(ranks);
  const std::vector<int64_t> sizes = warm_up_gathers(ranks);
  REQUIRE(sizes.front() == 1);
  for (size_t i = 1; i < sizes.size(); ++i) CHECK(sizes[i] == 2 * sizes[i - 1]);
  constexpr int64_t most = 64 << 20;
  if (sizes.size() > 1) CHECK(sizes.back() * ranks <= most);
  CHECK(sizes.back() * ranks * 2 > most);
}

}  // namespace
}  // namespace pptrain::comm

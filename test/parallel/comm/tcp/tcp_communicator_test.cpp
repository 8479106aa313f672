#include "parallel/comm/tcp/tcp_communicator.h"

#include <algorithm>
#include <chrono>

#include "core/base/error.h"
#include "test/support/catch.h"
#include "test/support/ops.h"
#include "test/support/paths.h"
#include "test/support/processes.h"

namespace pptrain::comm {
namespace {

using Clock = std::chrono::steady_clock;
using pptrain::test::contains_text;

std::vector<test::Ended> run_ranks(const std::string& mode, int size, int started, double seconds = 60) {
  const std::string port = std::to_string(test::free_port());
  std::vector<test::Process> processes;
  for (int r = 0; r < started; ++r) {
    processes.push_back({{(test::build_dir() / "comm_rank").string(), mode},
                         {{"RANK", std::to_string(r)},
                          {"LOCAL_RANK", std::to_string(r)},
                          {"WORLD_SIZE", std::to_string(size)},
                          {"MASTER_ADDR", "127.0.0.1"},
                          {"MASTER_PORT", port}}});
  }
  return test::run_processes(processes, seconds);
}

TEST_CASE("TCP does what a transport must") {
  const int size = GENERATE(2, 3, 5);
  CAPTURE(size);
  for (const test::Ended& rank : run_ranks("exercise", size, size)) {
    INFO(rank.output);
    REQUIRE(rank.code == 0);
  }
}

TEST_CASE("TCP: a killed process ends the others within seconds, by name") {
  const auto start = Clock::now();
  const auto ranks = run_ranks("die", 3, 3);
  REQUIRE(Clock::now() - start < std::chrono::seconds(15));
  REQUIRE(ranks[1].code == 128 + 9);
  for (const int r : {0, 2}) {
    INFO(ranks[r].output);
    REQUIRE(ranks[r].code == 3);
    REQUIRE_THAT(ranks[r].output, contains_text("PeerFailure: rank 1 ") && contains_text("died"));
  }
}

TEST_CASE("TCP: abort carries its message to all ranks") {
  const auto ranks = run_ranks("abort", 3, 3);
  REQUIRE(ranks[1].code == 1);
  for (const int r : {0, 2}) {
    INFO(ranks[r].output);
    REQUIRE(ranks[r].code == 3);
    REQUIRE_THAT(ranks[r].output, contains_text("PeerFailure: rank 1 failed: boom"));
  }
}

TEST_CASE("TCP: a rank that leaves by an exception is taken for dead") {
  const auto ranks = run_ranks("throw", 3, 3);
  REQUIRE(ranks[1].code == 1);
  for (const int r : {0, 2}) {
    INFO(ranks[r].output);
    REQUIRE(ranks[r].code == 3);
    REQUIRE_THAT(ranks[r].output, contains_text("PeerFailure: rank 1 "));
  }
}

TEST_CASE("TCP: a rank that ends in order fails only those that wait for it") {
  const auto ranks = run_ranks("owe", 2, 2);
  INFO(ranks[1].output);
  REQUIRE(ranks[0].code == 0);
  REQUIRE(ranks[1].code == 3);
  REQUIRE_THAT(ranks[1].output,
               contains_text("rank 0 has ended") && contains_text("RECV_F stage 1 microbatch 0"));
}

TEST_CASE("TCP: what a rank sent before it left arrives, and the others go on") {
  for (const test::Ended& rank : run_ranks("leave", 3, 3)) {
    INFO(rank.output);
    REQUIRE(rank.code == 0);
  }
}

TEST_CASE("TCP: a message that is too large for its receive ends the ranks with a message") {
  const auto ranks = run_ranks("misfit", 2, 2);
  INFO(ranks[0].output << ranks[1].output);
  REQUIRE(ranks[0].code != 0);
  REQUIRE(ranks[1].code == 1);
  REQUIRE_THAT(ranks[1].output,
               contains_text("a message of 1048576 bytes came where 1024 bytes were expected"));
}

TEST_CASE("TCP: a wait for a silent process ends with the timeout and says what for") {
  // The rank that gives up first may end the other one before the other's own timeout.
  const auto ranks = run_ranks("timeout", 2, 2);
  INFO(ranks[0].output << ranks[1].output);
  REQUIRE(std::min(ranks[0].code, ranks[1].code) == 1);
  const std::string& first = ranks[ranks[0].code == 1 ? 0 : 1].output;
  REQUIRE_THAT(first, contains_text("RECV_B stage 5 microbatch 7") && contains_text("waited 0.1 s"));
}

TEST_CASE("TCP: a world of one needs nobody") {
  const auto world = make_tcp_world(0, 1, {.host = "nowhere.invalid", .port = 1});
  world->barrier();
  REQUIRE(world->duplicate()->size() == 1);
}

}  // namespace
}  // namespace pptrain::comm

#include "parallel/comm/mpi/mpi_communicator.h"

#include <chrono>

#include "test/support/catch.h"
#include "test/support/mpirun.h"
#include "test/support/paths.h"

namespace pptrain::comm {
namespace {

using Clock = std::chrono::steady_clock;
using pptrain::test::contains_text;

test::Ended mpirun(int size, const std::string& mode) {
  return test::mpirun(size, {(test::build_dir() / "comm_rank").string(), mode}, 60);
}

TEST_CASE("MPI does what a transport must") {
  if (!test::has_mpi()) {
    REQUIRE_THROWS(make_mpi_world());
    return;
  }
  const int size = GENERATE(2, 3);
  const test::Ended ended = mpirun(size, "exercise");
  INFO(ended.output);
  REQUIRE(ended.code == 0);
}

TEST_CASE("MPI: a failed rank ends the job within seconds") {
  if (!test::has_mpi()) return;
  const std::string mode = GENERATE("abort", "die", "die_beside_work", "throw");
  const auto start = Clock::now();
  const test::Ended ended = mpirun(3, mode);
  INFO(mode << "\n" << ended.output);
  REQUIRE(Clock::now() - start < std::chrono::seconds(20));
  REQUIRE(ended.code != 0);
  if (mode == "abort" || mode == "throw") REQUIRE_THAT(ended.output, contains_text("boom"));
}

TEST_CASE("MPI: a message that is too large for its receive ends the job with a message") {
  if (!test::has_mpi()) return;
  const test::Ended ended = mpirun(2, "misfit");
  INFO(ended.output);
  REQUIRE(ended.code == 1);
  REQUIRE_THAT(ended.output,
               contains_text("a message from rank 0 has 1048576 bytes where 1024 were expected"));
}

TEST_CASE("MPI: a wait for a silent process ends with the timeout and says what for") {
  if (!test::has_mpi()) return;
  const test::Ended ended = mpirun(2, "timeout");
  INFO(ended.output);
  REQUIRE(ended.code != 0);
  REQUIRE_THAT(ended.output, contains_text("RECV_B stage 5 microbatch 7") && contains_text("waited 0.1 s"));
}

}  // namespace
}  // namespace pptrain::comm

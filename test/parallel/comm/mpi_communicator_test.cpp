#include "parallel/comm/mpi_communicator.h"

#include <chrono>

#include "test/parallel/comm/processes.h"
#include "test/support/catch.h"

namespace pptrain::comm {
namespace {

using Clock = std::chrono::steady_clock;
using pptrain::test::contains_text;

test::Ended mpirun(int size, const std::string& mode) {
  std::vector<std::string> arguments{MPIEXEC};
  if (mpi_flavor() == MpiFlavor::open_mpi) arguments.emplace_back("--oversubscribe");
  for (const std::string& argument :
       {std::string("-n"), std::to_string(size), std::string(COMM_RANK), mode}) {
    arguments.push_back(argument);
  }
  return test::run_processes(
             {{arguments, {{"OMPI_ALLOW_RUN_AS_ROOT", "1"}, {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"}}}}, 60)
      .front();
}

TEST_CASE("MPI does what a transport must") {
  if (mpi_flavor() == MpiFlavor::none) {
    REQUIRE_THROWS(make_mpi_world());
    return;
  }
  const int size = GENERATE(2, 3);
  const test::Ended ended = mpirun(size, "exercise");
  INFO(ended.output);
  REQUIRE(ended.code == 0);
}

TEST_CASE("MPI: a failed rank ends the job within seconds") {
  if (mpi_flavor() == MpiFlavor::none) return;
  const std::string mode = GENERATE("abort", "die", "throw");
  const auto start = Clock::now();
  const test::Ended ended = mpirun(3, mode);
  INFO(mode << "\n" << ended.output);
  REQUIRE(Clock::now() - start < std::chrono::seconds(20));
  REQUIRE(ended.code != 0);
  if (mode != "die") REQUIRE_THAT(ended.output, contains_text("boom"));
}

TEST_CASE("MPI: a wait for a silent process ends with the timeout and says what for") {
  if (mpi_flavor() == MpiFlavor::none) return;
  const test::Ended ended = mpirun(2, "timeout");
  INFO(ended.output);
  REQUIRE(ended.code != 0);
  REQUIRE_THAT(ended.output, contains_text("RECV_B stage 5 microbatch 7") && contains_text("waited 0.1 s"));
}

}  // namespace
}  // namespace pptrain::comm

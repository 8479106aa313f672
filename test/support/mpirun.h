// Starts a program under the MPI that this build uses.
#pragma once

#include "parallel/comm/mpi/mpi_communicator.h"
#include "test/support/not_run.h"
#include "test/support/paths.h"
#include "test/support/processes.h"

namespace pptrain::test {

// If false, the case is reported as not run, and must return.
inline bool has_mpi() {
  if (comm::mpi_flavor() != comm::MpiFlavor::none) return true;
  not_run("built without MPI");
  return false;
}

// Runs `program` (with its arguments) as `size` ranks, killed after `seconds`.
inline Ended mpirun(int size, const std::vector<std::string>& program, double seconds) {
  std::vector<std::string> arguments{mpiexec()};
  if (comm::mpi_flavor() == comm::MpiFlavor::open_mpi) arguments.emplace_back("--oversubscribe");
  arguments.insert(arguments.end(), {"-n", std::to_string(size)});
  arguments.insert(arguments.end(), program.begin(), program.end());
  return run_processes(
             {{arguments, {{"OMPI_ALLOW_RUN_AS_ROOT", "1"}, {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"}}}},
             seconds)
      .front();
}

}  // namespace pptrain::test

// In place of mpi_communicator.cpp if the build found no MPI.
#include "core/base/error.h"
#include "parallel/comm/mpi/mpi_communicator.h"

namespace pptrain::comm {

MpiFlavor mpi_flavor() {
  return MpiFlavor::none;
}
std::string mpi_version() {
  return "no MPI";
}

std::unique_ptr<Communicator> make_mpi_world() {
  throw UsageError(
      "this program was built without MPI: install an MPI (Debian: libopenmpi-dev) and build again, or "
      "launch with torchrun or Slurm variables");
}

}  // namespace pptrain::comm

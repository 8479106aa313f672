// MPI on CPU tensors: Open MPI or MPICH, whichever the build found; without MPI no_mpi.cpp takes
// mpi_communicator.cpp's place.
#pragma once

#include <memory>
#include <string>

#include "parallel/comm/communicator.h"

namespace pptrain::comm {

enum class MpiFlavor { none, open_mpi, mpich };

// The MPI this program is built with, and its version text for messages.
MpiFlavor mpi_flavor();
std::string mpi_version();

// Initialises MPI and gives the world. MPI is finalised when the last communicator is gone; not when it goes
// while an exception unwinds, so that the launcher sees an improper end and stops the other ranks. Throws
// UsageError without MPI.
std::unique_ptr<Communicator> make_mpi_world();

}  // namespace pptrain::comm

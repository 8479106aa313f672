// What every transport must do, in one body that runs on threads, MPI and TCP alike.
#pragma once

#include "parallel/comm/communicator.h"

namespace pptrain::comm::test {

// Point-to-point, collectives, splits and helpers on all ranks of `world`, of two or more. Throws Error at
// the first difference.
void exercise(Communicator& world);

// The collectives with handles; part of exercise(), and all that a world of one rank can do.
void exercise_collectives(Communicator& world);

// Every rank waits 100 ms for a message of its neighbour that nobody sends. Returns the message of the error.
std::string provoke_timeout(Communicator& world);

}  // namespace pptrain::comm::test

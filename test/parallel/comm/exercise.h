// Checks of every transport, in one body that runs on threads, MPI and TCP.
#pragma once

#include "parallel/comm/communicator.h"

namespace pptrain::comm::test {

// Point-to-point, collectives, splits and helpers on all ranks of `world`, which has two or more. Throws
// Error at the first difference.
void exercise(Communicator& world);

// The collectives with handles: part of exercise(), and the only part for a world of one rank.
void exercise_collectives(Communicator& world);

// Every rank waits 100 ms for a message that its neighbour does not send. Returns the message of the error.
std::string provoke_timeout(Communicator& world);

}  // namespace pptrain::comm::test

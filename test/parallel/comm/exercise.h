// Checks of every transport, in one body that runs on threads, MPI and TCP.
#pragma once

#include <string>

#include "parallel/comm/communicator.h"

namespace pptrain::comm::test {

// Point-to-point, collectives, splits and helpers on all ranks of `world`, which has two or more. Throws
// Error at the first difference.
void exercise(Communicator& world);

// The collectives with handles: part of exercise(), and the only part for a world of one rank.
void exercise_collectives(Communicator& world);

// Elements [begin, begin + size) of what rank `rank` gives: float32, float64, bfloat16 or int64. All ranks
// know it, and the order of a sum shows in the sum's bits.
at::Tensor operand(int rank, int64_t size, int seed, at::ScalarType type, int64_t begin = 0);

// Throws Error if the condition does not hold.
void expect(bool condition, const std::string& what);

// Every rank waits 100 ms for a message that its neighbour does not send. Returns the message of the error.
std::string provoke_timeout(Communicator& world);

}  // namespace pptrain::comm::test

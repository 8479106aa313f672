// Groups told apart by what every rank can compute of every other.
#pragma once

#include <memory>
#include <vector>

#include "parallel/comm/communicator.h"

namespace pptrain::comm {

// The ranks of `comm` that have the colour of this one, in their order. color(rank): the same on all ranks.
// Collective over `comm`; nothing is exchanged to agree on the colours.
template <typename Color>
std::unique_ptr<Communicator> split(Communicator& comm, const Color& color) {
  std::vector<int> members;
  for (int rank = 0; rank < comm.size(); ++rank) {
    if (color(rank) == color(comm.rank())) members.push_back(rank);
  }
  return comm.subgroup(members);
}

}  // namespace pptrain::comm

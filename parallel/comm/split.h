// Groups of ranks that every rank computes without an exchange.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "core/base/split_mix.h"
#include "parallel/comm/communicator.h"

namespace pptrain::comm {

// --- The tree along which a group collects what its ranks have, and hands out what one of them knows.

// Up to so many ranks exchange small values directly: in one round, with size (size - 1) messages. More ranks
// use the tree: 2 (size - 1) messages, in as many rounds as twice the logarithm of their number.
inline constexpr int direct_ranks = 8;

// A binomial tree with rank 0 as its root; of direct_ranks or fewer, a star. Below a rank are the ranks that
// follow it without a gap, so that what they have is one block.
struct Tree {
  Tree(int rank, int size) {
    const int low_bit = rank & -rank;
    const bool star = size <= direct_ranks;
    parent = star && rank > 0 ? 0 : rank - low_bit;
    ranks = rank == 0 ? size : std::min(star ? 1 : low_bit, size - rank);
    for (int distance = 1; distance < ranks; distance = star ? distance + 1 : 2 * distance)
      children.push_back(rank + distance);
  }
  // Ranks of the subtree of child `i`.
  int ranks_below(size_t i, int rank) const {
    const int end = i + 1 < children.size() ? children[i + 1] : rank + ranks;
    return end - children[i];
  }

  int parent = 0;             // of other ranks than 0
  std::vector<int> children;  // ascending: the last has the deepest subtree
  int ranks = 1;              // of the subtree, this one included
};

// --- Names of groups, for a transport that makes its groups itself.

// How many groups one rank of a communicator has made of it, by list of members.
using GroupCounts = std::unordered_map<uint64_t, uint64_t>;

// The name of the next group of `members`: the same on all of them, and different from groups of other lists
// and from earlier groups of the same list.
inline uint64_t next_group(std::span<const int> members, GroupCounts& made) {
  uint64_t list = members.size();
  for (const int member : members) list = split_mix(list + static_cast<uint64_t>(member) + 1);
  return split_mix(list + ++made[list]);
}

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

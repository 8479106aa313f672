// The tree along which a group collects what its ranks have, and hands out what one of them knows.
#pragma once

#include <algorithm>
#include <vector>

namespace pptrain::comm {

// Up to so many ranks exchange directly what is small: in one round, with size (size - 1) messages. More go
// through the tree: 2 (size - 1) messages, in rounds as many as twice the logarithm of their number.
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

}  // namespace pptrain::comm

// Groups whose ranks share hosts: their sums and gathers go in two steps, within blocks of ranks on one host
// and between blocks. So what is the same for a block crosses hosts once (Cho et al., BlueConnect, MLSys
// 2019).
#pragma once

#include <algorithm>
#include <span>
#include <vector>

namespace pptrain::comm {

// A group's ranks in blocks. For each rank of the group one rank of every block is the relay: a sum's block
// adds up there what goes to this rank, and a gather's block receives there what comes from it.
//
// Sums over ranks are taken in pairs of neighbours, then in pairs of these pairs, and so on. A block has a
// power of two ranks, so its sum is one of these terms, and bits do not depend on the size of blocks.
struct HostBlocks {
  int ranks = 1;  // of the group
  int block = 1;  // ranks in a row; the last block may have fewer

  // hosts: [rank] The number of its host. The largest blocks that have one host each.
  static HostBlocks within(std::span<const int> hosts) {
    HostBlocks blocks{.ranks = static_cast<int>(hosts.size()), .block = 1};
    const auto share = [&](int size) {
      for (int rank = 0; rank < blocks.ranks; ++rank) {
        if (hosts[static_cast<size_t>(rank)] != hosts[static_cast<size_t>(rank / size * size)]) return false;
      }
      return true;
    };
    while (blocks.block < blocks.ranks && share(2 * blocks.block)) blocks.block *= 2;
    return blocks;
  }

  int count() const { return (ranks + block - 1) / block; }
  bool two_steps() const { return block > 1 && count() > 1; }
  int of(int rank) const { return rank / block; }
  int first(int b) const { return b * block; }
  int size(int b) const { return std::min(block, ranks - first(b)); }

  // Of block `b`, for `rank`. A rank is its own block's relay for itself.
  int relay(int b, int rank) const { return first(b) + (of(rank) == b ? rank % block : rank % size(b)); }
  // The ranks that `relay` serves, ascending: itself, and ranks of other blocks.
  std::vector<int> served_by(int relay) const {
    std::vector<int> served;
    for (int rank = 0; rank < ranks; ++rank) {
      if (this->relay(of(relay), rank) == relay) served.push_back(rank);
    }
    return served;
  }

  // A sum receives so many tensors of the length of a rank's part, at most.
  int most_rows() const { return two_steps() ? ranks + block + count() : ranks; }
};

}  // namespace pptrain::comm

// A rank of S x R thread ranks, with the groups over which a stage's parameters are sharded (S shards) and
// replicated (R replicas of each).
#pragma once

#include <memory>

#include "parallel/comm/communicator.h"
#include "parallel/comm/split.h"
#include "parallel/shard/group_exchange.h"

namespace pptrain::test {

struct ThreadGroups {
  // World rank = piece * replicas + replica.
  ThreadGroups(comm::Communicator& world, int replicas)
      : piece(world.rank() / replicas),
        replica(world.rank() % replicas),
        pieces(comm::split(world, [=](int rank) { return rank % replicas; })),
        same_piece(comm::split(world, [=](int rank) { return rank / replicas; })),
        sum(world.duplicate()) {}

  shard::ShardRanks ranks() const { return {.pieces = *pieces, .replicas = *same_piece, .sum = *sum}; }
  nn::ShardPlace division(bool own_gradient = false) const {
    return {.index = piece, .count = pieces->size(), .own_gradient = own_gradient};
  }

  int piece, replica;
  std::unique_ptr<comm::Communicator> pieces, same_piece, sum;
};

}  // namespace pptrain::test

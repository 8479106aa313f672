// A rank of S x R thread ranks, with the groups over which a stage's parameters are sharded (S shards) and
// replicated (R replicas of each).
#pragma once

#include <memory>

#include "parallel/comm/communicator.h"
#include "parallel/comm/split.h"
#include "parallel/shard/group_exchange.h"

namespace pptrain::test {

struct ThreadGroups {
  // World rank = replica * shards + shard.
  ThreadGroups(comm::Communicator& world, int replicas) : ThreadGroups(world.size() / replicas, world) {}

  shard::ShardRanks ranks() const { return {.shards = *shards, .replicas = *same_shard, .sum = *sum}; }
  nn::ShardPlace division(bool own_gradient = false) const {
    return {.index = shard, .count = shards->size(), .own_gradient = own_gradient};
  }

  int shard, replica;
  std::unique_ptr<comm::Communicator> shards, same_shard, sum;

 private:
  ThreadGroups(int count, comm::Communicator& world)
      : shard(world.rank() % count),
        replica(world.rank() / count),
        shards(comm::split(world, [=](int rank) { return rank / count; })),
        same_shard(comm::split(world, [=](int rank) { return rank % count; })),
        sum(world.duplicate()) {}
};

}  // namespace pptrain::test

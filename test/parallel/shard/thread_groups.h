// A rank of S x R thread ranks, with the groups over which a stage's parameters are sharded (S shards) and
// replicated (R replicas of each).
#pragma once

#include <memory>
#include <vector>

#include "parallel/comm/communicator.h"
#include "parallel/comm/split.h"
#include "parallel/shard/group_exchange.h"

namespace pptrain::test {

struct ThreadGroups {
  enum class Outermost { shards, replicas };

  ThreadGroups(comm::Communicator& world, int replicas, Outermost outermost = Outermost::shards)
      : ThreadGroups(world, replicas, world.size() / replicas, outermost == Outermost::shards) {}

  shard::ShardRanks ranks() const {
    return {.shards = *shards, .replicas = *same_shard, .sum = *sum, .sum_order = order};
  }
  nn::ShardPlace division(bool own_gradient = false) const {
    return {.index = shard, .count = shards->size(), .own_gradient = own_gradient};
  }

  int shard, replica;
  std::unique_ptr<comm::Communicator> shards, same_shard, sum;
  std::vector<int> order;

 private:
  ThreadGroups(comm::Communicator& world, int replicas, int parts, bool shards_outermost)
      : shard(shards_outermost ? world.rank() / replicas : world.rank() % parts),
        replica(shards_outermost ? world.rank() % replicas : world.rank() / parts),
        shards(
            comm::split(world, [=](int rank) { return shards_outermost ? rank % replicas : rank / parts; })),
        same_shard(
            comm::split(world, [=](int rank) { return shards_outermost ? rank / replicas : rank % parts; })),
        sum(world.duplicate()) {
    for (int part = 0; part < parts && !shards_outermost; ++part) {
      for (int r = 0; r < replicas; ++r) order.push_back(r * parts + part);
    }
  }
};

}  // namespace pptrain::test

// What ranks exchange of one parameter group: weights before they are used, gradients after they are computed
// (fully sharded data parallelism: Rajbhandari et al., ZeRO, arXiv 1910.02054; Zhao et al., arXiv
// 2304.11277).
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <memory>

#include "core/nn/parameter.h"
#include "parallel/comm/communicator.h"

namespace pptrain::shard {

// The ranks that parameter groups are sharded over. All must outlive their users.
struct ShardRanks {
  comm::Communicator& shards;    // that groups are sharded over; rank r has shard r
  comm::Communicator& replicas;  // that hold the same shard
  comm::Communicator& sum;       // whose gradients are summed: both together, all shards of a replica first
  // Ranks that hold copies of a parameter (nn::Copies::tp, kv), each with a part of its gradient; null if a
  // rank is alone.
  comm::Communicator* tp_copies = nullptr;
  comm::Communicator* kv_copies = nullptr;
};

// With one rank in each group nothing is exchanged, and nothing costs anything.
class GroupExchange {
 public:
  // The group is materialised, and outlives this. Throws Error if it is not sharded as `ranks` says; a group
  // with shards on pipeline ranks counts as whole.
  GroupExchange(nn::ParameterGroup& group, const ShardRanks& ranks);

  // Is there another shard?
  bool is_sharded() const { return ranks_.shards.size() > 1; }

  // Gathers all shards' compute weights: once the work is done, layers may use them. Collective over the
  // shards.
  std::unique_ptr<comm::Work> unshard();

  // Frees the compute weights of a sharded group until unshard(). Local; no unshard() may be under way.
  void reshard() { group_.release_whole_compute(); }

  // Whether any of sum_steps is not empty.
  bool is_summed(size_t buffer) const;

  // The steps that sum one buffer's whole gradients: over copies, then over the ranks with other samples,
  // then the replicas' exchange of parts. Each step begins when the one before is done; after the last, this
  // rank's shard of the whole gradient is the sum. A step may be empty: then there is nothing to do.
  // gradient_sums.h runs them.
  using Step = std::function<std::unique_ptr<comm::Work>()>;
  using SumSteps = std::array<Step, 3>;
  SumSteps sum_steps(size_t buffer);

  nn::ParameterGroup& group() const { return group_; }
  // This rank's shard of one buffer's whole gradient.
  at::Tensor own_shard(size_t buffer);

 private:
  comm::Communicator* copies(size_t buffer) const;
  int rank_in_sum(int shard, int replica) const { return replica * ranks_.shards.size() + shard; }

  nn::ParameterGroup& group_;
  ShardRanks ranks_;
};

}  // namespace pptrain::shard

// What ranks exchange of one parameter group: weights before they are used, gradients after they are taken
// (fully sharded data parallelism: Rajbhandari et al., ZeRO, arXiv 1910.02054; Zhao et al., arXiv
// 2304.11277).
#pragma once

#include <memory>

#include "core/nn/parameter.h"
#include "parallel/comm/communicator.h"

namespace pptrain::shard {

// With one rank in both groups nothing is exchanged, and nothing costs anything.
class GroupExchange {
 public:
  // `fsdp`: the ranks over which the group is divided, each with the part of its rank. `replicas`: the ranks
  // that hold the same part. The group is materialised with gradients. All must outlive this. Throws Error
  // where the group is divided otherwise.
  GroupExchange(nn::ParameterGroup& group, comm::Communicator& fsdp, comm::Communicator& replicas);

  // Gathers all parts' compute weights: once the work is done, layers may use them. Collective over fsdp, as
  // everything here but reshard().
  std::unique_ptr<comm::Work> unshard();

  // Frees the compute weights of a divided group until unshard(). Local; no unshard() may be under way.
  void reshard() { group_.release_whole_compute(); }

  // Sums main gradients over fsdp and replicas, each in rank order: once the work is done, every shard's
  // `grad` is the sum of all ranks. Of a group that is both divided and replicated the second sum begins in
  // the work's wait(), which all ranks must call in the same order; until then its done() is false.
  std::unique_ptr<comm::Work> reduce_grad();

 private:
  nn::ParameterGroup& group_;
  comm::Communicator& fsdp_;
  comm::Communicator& replicas_;
};

}  // namespace pptrain::shard

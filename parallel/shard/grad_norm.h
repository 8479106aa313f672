// The one global gradient norm, equal bit for bit on every layout.
#pragma once

#include <span>

#include "core/kernels/exact_sum.h"
#include "parallel/comm/communicator.h"

namespace pptrain::shard {

// Each rank hands in the exact sum of squares of what it answers for. Exact sums have no order, so neither
// who holds what nor how many ranks there are leaves a trace in the norm.
class GradNorm {
 public:
  // `replica`: the ranks that share out this rank's stages. `pipeline`: along pp. Together they hold every
  // element that counts once. Both must outlive this.
  GradNorm(comm::Communicator& replica, comm::Communicator& pipeline)
      : replica_(replica), pipeline_(pipeline) {}

  // sqrt of the global sum, which is rounded once; NaN where a gradient is not finite. Collective over both
  // groups; the same bits on every rank.
  double operator()(const kernels::ExactSum& squares) const;

  // What this rank's replica comes to. Collective over `replica`.
  kernels::ExactSum of_replica(const kernels::ExactSum& squares) const;
  // The norm from what the replicas of all stages came to.
  static double of_stages(std::span<const kernels::ExactSum> stages);

 private:
  comm::Communicator& replica_;
  comm::Communicator& pipeline_;
};

}  // namespace pptrain::shard

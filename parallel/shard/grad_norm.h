// The one global gradient norm, equal bit for bit on every layout.
#pragma once

#include <span>

#include "core/kernels/exact_sum.h"
#include "parallel/comm/communicator.h"

namespace pptrain::shard {

// Each rank hands in the exact sum of squares of the elements that it counts. Exact sums have no order, so
// the norm depends neither on the number of ranks nor on what each holds.
class GradNorm {
 public:
  // `replica`: the ranks that this rank's stages are sharded over. `pipeline`: along pp. Together they hold
  // every element that counts once. Both must outlive this.
  GradNorm(comm::Communicator& replica, comm::Communicator& pipeline)
      : replica_(replica), pipeline_(pipeline) {}

  // sqrt of the global sum, which is rounded once; NaN if a gradient is not finite. Collective over both
  // groups; the same bits on every rank.
  double operator()(const kernels::ExactSum& squares) const;

  // The sum over this rank's replica. Collective over `replica`.
  kernels::ExactSum of_replica(const kernels::ExactSum& squares) const;
  // The norm from the sums of the replicas of all stages.
  static double of_stages(std::span<const kernels::ExactSum> stages);

 private:
  comm::Communicator& replica_;
  comm::Communicator& pipeline_;
};

}  // namespace pptrain::shard

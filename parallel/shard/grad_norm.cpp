#include "parallel/shard/grad_norm.h"

#include <cmath>

namespace pptrain::shard {
namespace {

kernels::ExactSum sum_over(comm::Communicator& ranks, const kernels::ExactSum& own) {
  if (ranks.size() == 1) return own;
  return kernels::ExactSum(comm::all_reduce_sum(ranks, own.portable()));
}

}  // namespace

kernels::ExactSum GradNorm::of_replica(const kernels::ExactSum& squares) const {
  return sum_over(replica_, squares);
}

double GradNorm::operator()(const kernels::ExactSum& squares) const {
  return std::sqrt(sum_over(pipeline_, of_replica(squares)).rounded());
}

double GradNorm::of_stages(std::span<const kernels::ExactSum> stages) {
  kernels::ExactSum sum;
  for (const kernels::ExactSum& stage : stages) sum.add(stage);
  return std::sqrt(sum.rounded());
}

}  // namespace pptrain::shard

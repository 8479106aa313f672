// The one global gradient norm, equal bit for bit on every layout.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "parallel/comm/communicator.h"

namespace pptrain::shard {

// Squared norms are summed per parameter where the parameter lives, then over all parameters in the order of
// their global names: the order of summation does not depend on which rank holds what.
class GradNorm {
 public:
  // `names`: the parameters this rank answers for. Every parameter of the model is named by exactly one rank
  // of `pipeline`. Collective. Throws Error that names a parameter claimed twice.
  GradNorm(comm::Communicator& pipeline, const std::vector<std::string>& names);

  // sqrt of the global sum. squared_norms: in the order of `names`. Collective; the same bits on every rank.
  double operator()(std::span<const double> squared_norms) const;

  // The same from the squared norms of every rank, [rank][in the order of its names].
  double of_ranks(const std::vector<std::span<const double>>& squared_norms) const;

  size_t parameters() const { return total_; }
  size_t parameters_of(int rank) const { return positions_[rank].size(); }

 private:
  comm::Communicator& pipeline_;
  std::vector<std::vector<size_t>> positions_;  // [rank] of each of its parameters in the global order
  size_t total_ = 0;
};

}  // namespace pptrain::shard

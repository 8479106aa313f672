// Experts shared out among ranks: rows travel to the ranks of their experts and back (Lepikhin et al., arXiv
// 2006.16668).
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "core/nn/experts.h"
#include "parallel/comm/communicator.h"

namespace pptrain::expert {

// Rank r of the n ranks of `ep` holds the experts [E r / n, E (r + 1) / n). A pass first tells how many rows
// each expert gets, over ep.host(); then every exchange is one all-to-all of just these rows. Rows of one
// expert are ordered by rank and place there, whatever arrives first, so that sums over them have the same
// bits in every run. In a dry run every expert gets as many rows.
class RankExchange final : public nn::ExpertExchange {
 public:
  // stage: the ranks that see a part of the same global microbatch. Either may be null, where the rank is
  // alone; both must outlive this.
  RankExchange(comm::Communicator* ep, comm::Communicator* stage);

  nn::ExpertRange own(int64_t experts) const override { return range(experts, rank_); }
  bool is_local() const override { return ranks_ == 1; }
  std::unique_ptr<const Plan> plan(const at::Tensor& ends, int64_t rows) const override;
  at::Tensor dispatch(const Plan& plan, at::Tensor rows) const override;
  at::Tensor combine(const Plan& plan, at::Tensor rows) const override;
  void sum_loads(at::Tensor& loads) const override;

 private:
  nn::ExpertRange range(int64_t experts, int rank) const {
    return {.begin = experts * rank / ranks_, .end = experts * (rank + 1) / ranks_};
  }

  comm::Communicator* ep_;
  comm::Communicator* stage_;
  int rank_, ranks_;
};

}  // namespace pptrain::expert

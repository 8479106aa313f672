// Experts sharded over ranks: rows travel to the ranks of their experts and back (Lepikhin et al., arXiv
// 2006.16668).
#pragma once

#include <memory>

#include "core/nn/experts.h"
#include "parallel/comm/communicator.h"

namespace pptrain::expert {

// Rank r of the n ranks of `ep` holds the experts [E r / n, E (r + 1) / n). A pass first tells how many rows
// each expert gets, over ep.host(); then every exchange is one all-to-all of just these rows. Rows of one
// expert are ordered by rank and place there, whatever arrives first, so that sums over them have the same
// bits in every run. In a dry run every expert gets as many rows.
//
// stage: the ranks that see a part of the same global microbatch. Either may be null if the rank is alone;
// both must outlive the exchange.
std::shared_ptr<const nn::ExpertExchange> make_rank_exchange(comm::Communicator* ep,
                                                             comm::Communicator* stage);

}  // namespace pptrain::expert

// Ring attention (Liu et al., arXiv 2310.01889): each rank keeps its queries, and keys and values travel from
// rank to rank while what is there is computed with. Documents may cross ranks.
//
// A step computes the blocks of own queries and present keys that lie in one document and meet causally, and
// adds them to what earlier steps gave, by the log-sum-exp of the scores, in float32. Steps have one order,
// so that two runs give equal bits. The ring stops when nobody needs keys from farther away.
//
// What a rank sends in a forward pass: its list's keys and values once a step but the last, in T. In a
// backward pass: the same again, and for each step whose keys it used their gradients, in float32, straight
// to the rank that owns them, which adds them in the order of steps. (Gradients that travel with the keys
// would take a step more to come home, and go to ranks that have nothing to add to them.)
#pragma once

#include <memory>

#include "core/nn/attention_product.h"
#include "parallel/comm/communicator.h"

namespace pptrain::context {

// `group`: the ranks that share each token list, by their number in its ContextSplit; it must outlive the
// product. Collective where the transport sets up links. Any split serves; the zigzag one balances. A list
// without a split is computed by each rank for itself.
std::shared_ptr<nn::AttentionProduct> make_ring_attention(comm::Communicator& group,
                                                          nn::AttentionOptions options = {});

}  // namespace pptrain::context

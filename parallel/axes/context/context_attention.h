// Attention over a token list that is sharded over context-parallel ranks. Only attention looks at other
// tokens, so a layer sees all of context parallelism as one CoreAttention.
#pragma once

#include <memory>

#include "core/attention/attention.h"
#include "parallel/comm/communicator.h"

namespace pptrain::context {

// `group`: the ranks that each token list is sharded over, by their number in its ContextSplit; it must
// outlive the result. Any split serves. A list without a split is computed by each rank for itself.

// Ring attention (Liu et al., arXiv 2310.01889): each rank keeps its queries. Keys and values travel from
// rank to rank, overlapped with the computation of a step. Documents may cross ranks. The zigzag split
// balances.
//
// A step computes the blocks of own queries and present keys that lie in one document and meet causally. It
// adds them to the result of earlier steps by the log-sum-exp of the scores, in float32. Steps have one
// order, so that two runs give equal bits. The ring stops when no rank needs keys from farther away.
//
// A rank sends in a forward pass: its list's keys and values once a step but the last, in T. In a backward
// pass: the same again, and for each step the gradients of the keys that it used, in float32, straight to the
// rank that owns the keys, which adds them in the order of steps. (Gradients that travel with the keys would
// take a step more to come home, and go to ranks that have nothing to add to them.)
//
// Collective if the transport sets up links.
std::shared_ptr<attention::CoreAttention> make_ring_attention(comm::Communicator& group,
                                                              bool deterministic = true);

// Ulysses attention (Jacobs et al., arXiv 2309.14509): around attention, ranks exchange tokens for heads, so
// that each computes some heads over all tokens, as if it were alone. The number of ranks divides the heads.
// With one row in contiguous slices no rows are moved within a rank.
//
// A rank sends in a forward pass: its queries, keys and values of the other ranks' heads, and its heads'
// output for the others' tokens. In a backward pass: the same in the other direction. All in T. Key-value
// heads that several ranks need are sent to each of them; their gradients are summed in float32, in rank
// order.
std::shared_ptr<attention::CoreAttention> make_ulysses_attention(comm::Communicator& group,
                                                                 bool deterministic = true);

}  // namespace pptrain::context

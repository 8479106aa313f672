// Ulysses attention (Jacobs et al., arXiv 2309.14509): around the product, ranks exchange tokens for heads,
// so that each computes some heads over all tokens, as if it were alone.
//
// What a rank sends in a forward pass: the other ranks' heads of its queries, keys and values, and its heads'
// output of the others' tokens; in a backward pass the same in the other direction, all in T. Key-value heads
// that several ranks need are sent to each of them; their gradients are summed in float32, in rank order.
#pragma once

#include <memory>

#include "core/nn/attention_product.h"
#include "parallel/comm/communicator.h"

namespace pptrain::context {

// `group`: the ranks that share each token list, by their number in its ContextSplit; their number divides
// the heads. It must outlive the product. Any split serves; with one row in contiguous pieces no
// rows are moved within a rank. A list without a split is computed by each rank for itself.
std::shared_ptr<nn::AttentionProduct> make_ulysses_attention(comm::Communicator& group,
                                                             nn::AttentionOptions options = {});

}  // namespace pptrain::context

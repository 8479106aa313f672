// Attention whose keys come in parts: blocks of queries and keys are added to what the queries have of other
// keys, in the manner of FlashAttention-2 (Dao, arXiv 2307.08691), with sums in float32.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

#include "core/tokens/context_split.h"

namespace pptrain::kernels::cpu {

// Adds `blocks` of the product of q with k and v to `out` and `logsumexp`, in their
// order, so that out = softmax(q k^T / sqrt(head_dim)) v over all keys that a query has seen so far, and
// logsumexp is that of their scaled scores. Before the first keys out is 0 and logsumexp minus infinity. q: T
// [queries, heads, head_dim]; k, v: T [keys, kv_heads, head_dim]; any strides with the last one 1. out:
// float32, as q; logsumexp: float32 [heads, queries]; contiguous.
void add_attention_blocks(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          std::span<const tokens::AttentionBlock> blocks, at::Tensor& out,
                          at::Tensor& logsumexp);

// Adds the blocks' share of the gradients to dq, dk and dv: float32, as q, k and v, contiguous. out: T, as q,
// and logsumexp are those of all keys; dout: T, as q.
void add_attention_blocks_backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                                   const at::Tensor& v, const at::Tensor& out, const at::Tensor& logsumexp,
                                   std::span<const tokens::AttentionBlock> blocks, at::Tensor& dq,
                                   at::Tensor& dk, at::Tensor& dv);

}  // namespace pptrain::kernels::cpu

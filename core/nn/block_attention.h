// Attention whose keys come in parts, as on a ring of ranks: each part's blocks are added to what the queries
// have of the others. By our own kernel on the CPU, by FlashAttention-2 for bfloat16 on CUDA, by plain
// operators elsewhere, which are slower and hold the scores of 256 rows at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "core/nn/causal_attention.h"
#include "core/tokens/context_split.h"

namespace pptrain::nn {

// What queries have of the keys that they have seen.
struct PartialAttention {
  at::Tensor out;        // float32 [tokens, heads, head_dim]: softmax(q k^T / sqrt(head_dim)) v
  at::Tensor logsumexp;  // float32 [heads, tokens]: of the scaled scores
};

// Of queries q: T [tokens, heads, head_dim] that have seen nothing: zeros, and minus infinity.
PartialAttention no_attention(const at::Tensor& q);

// Adds `blocks`, in their order. q: T [tokens, heads, head_dim]; k, v: T [keys, kv_heads, head_dim], kv_heads
// a divisor of heads; any strides with the last one 1. On CUDA, bfloat16 needs a head_dim that is a multiple
// of 8, of 256 at most. On the meta device only cost and memory are recorded: of the blocks given, no more.
void add_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                   std::span<const tokens::AttentionBlock> blocks, PartialAttention& seen);

// Adds the blocks' share of the gradients to `grads`: float32, as q, k and v, contiguous. out: T, contiguous,
// and logsumexp are those of all keys; dout: T, as q.
void add_attention_backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, const at::Tensor& out, const at::Tensor& logsumexp,
                            std::span<const tokens::AttentionBlock> blocks, AttentionGradients& grads,
                            AttentionOptions options = {});

// --- Blocks of attention by ATen's plain operators, in float32: where no kernel takes them. Slow, and holds
// the scores of 256 rows at a time.

// Adds what the queries [first, first + rows) have of keys that they had not seen. out: [rows, heads,
// head_dim]; logsumexp: float32 [heads, rows].
void merge_attention(PartialAttention& seen, int64_t first, const at::Tensor& out,
                     const at::Tensor& logsumexp);

// As add_attention and add_attention_backward, of one block.
void add_plain_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                         const tokens::AttentionBlock& block, PartialAttention& seen);
void add_plain_attention_backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                                  const at::Tensor& v, const at::Tensor& out, const at::Tensor& logsumexp,
                                  const tokens::AttentionBlock& block, AttentionGradients& grads);

}  // namespace pptrain::nn

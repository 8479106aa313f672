// Causal scaled dot product attention of grouped heads over documents in one token list, by the best library
// at hand.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "core/kernels/segments.h"

namespace pptrain::nn {

// What the backward pass needs beside operands and output: one entry for each call of the library, in the
// library's own shapes.
struct AttentionStatistics {
  struct Call {
    at::Tensor logsumexp;             // our own CPU kernel's: float32 [heads, tokens]
    at::Tensor rng_seed, rng_offset;  // CUDA libraries', unused without dropout
  };
  std::vector<Call> calls;
};

struct AttentionGradients {
  at::Tensor dq, dk, dv;
};

// softmax(q k^T / sqrt(head_dim), causal) v within each document by itself: T [tokens, heads, head_dim],
// contiguous. q: T [tokens, heads, head_dim]; k, v: T [tokens, kv_heads, head_dim], kv_heads a divisor of
// heads; any strides with the last one 1. On CUDA, bfloat16 needs a head_dim that is a multiple of 8. On the
// meta device outputs have shapes alone, the CPU kernel's.
at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const kernels::Segments& segments, AttentionStatistics& statistics);

// Gradients in the shapes of q, k and v, in buffers of their own, last stride 1. dout: as q.
AttentionGradients causal_attention_backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                                             const at::Tensor& v, const kernels::Segments& segments,
                                             const at::Tensor& out, const AttentionStatistics& statistics);

}  // namespace pptrain::nn

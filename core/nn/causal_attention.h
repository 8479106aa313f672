// Causal scaled dot product attention of grouped heads, by the best library at hand.
#pragma once

#include <ATen/core/Tensor.h>

namespace pptrain::nn {

// What the backward pass needs beside operands and output; the shape is the library's own.
struct AttentionStatistics {
  at::Tensor logsumexp;
  at::Tensor rng_seed, rng_offset;  // CUDA libraries', unused without dropout
};

struct AttentionGradients {
  at::Tensor dq, dk, dv;
};

// softmax(q k^T / sqrt(head_dim), causal) v: [batch, seq, heads, head_dim], contiguous. q: T [batch, seq,
// heads, head_dim]; k, v: T [batch, seq, kv_heads, head_dim], kv_heads a divisor of heads; any strides with
// the last one 1. On CUDA, bfloat16 needs a head_dim that is a multiple of 8.
at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            AttentionStatistics& statistics);

// Gradients in the shapes of q, k and v, in buffers of their own, last stride 1. dout: as q.
AttentionGradients causal_attention_backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                                             const at::Tensor& v, const at::Tensor& out,
                                             const AttentionStatistics& statistics);

}  // namespace pptrain::nn

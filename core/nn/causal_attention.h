// Causal scaled dot product attention of grouped heads over documents in one token list, by the best library
// at hand.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "core/nn/attention_choice.h"
#include "core/tokens/segments.h"

namespace pptrain::nn {

struct AttentionOptions {
  // Of the backward pass: the same operands give the same bits, on a GPU too. On the CPU they always do.
  bool deterministic = true;
};

// What the backward pass needs beside operands and output: one entry for each call of the library, in the
// library's own shapes.
struct AttentionStatistics {
  struct Call {
    at::Tensor logsumexp;             // our own CPU kernel's: float32 [heads, tokens]
    at::Tensor rng_seed, rng_offset;  // CUDA libraries', unused without dropout
  };
  std::vector<Call> calls;
  AttentionOptions options{};  // of the forward pass, which the backward pass keeps to
  // Who computed on a GPU; the backward pass is of the same.
  AttentionBackEnd back_end = AttentionBackEnd::flash;
};

struct AttentionGradients {
  at::Tensor dq, dk, dv;
  // T [tokens, heads + 2 kv_heads, head_dim], where dq, dk and dv are views of one tensor in this order;
  // undefined where they are not.
  at::Tensor fused{};
};

// Gradients in one uninitialised tensor, of q: T [tokens, heads, head_dim] and `kv_heads`.
AttentionGradients empty_fused_gradients(const at::Tensor& q, int64_t kv_heads);

// The same as a GPU's back end leaves them: in one tensor by cuDNN of equal documents, else in three.
AttentionGradients empty_gradients(AttentionBackEnd back_end, const at::Tensor& q, const at::Tensor& k,
                                   const tokens::Segments& segments);

// softmax(q k^T / sqrt(head_dim), causal) v within each document by itself: T [tokens, heads, head_dim],
// contiguous. q: T [tokens, heads, head_dim]; k, v: T [tokens, kv_heads, head_dim], kv_heads a divisor of
// heads; any strides with the last one 1. On CUDA head_dim is one that why_no_attention has nothing
// against. On the meta device outputs have shapes alone, the CPU kernel's, or as large as those of the dry
// run's GPU, whose libraries' memory is counted.
at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const tokens::Segments& segments, AttentionStatistics& statistics,
                            AttentionOptions options = {});

// Gradients in the shapes of q, k and v, last stride 1, in one buffer (`fused`) or several, which nobody else
// holds. dout: as q.
AttentionGradients causal_attention_backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                                             const at::Tensor& v, const tokens::Segments& segments,
                                             const at::Tensor& out, const AttentionStatistics& statistics);

}  // namespace pptrain::nn

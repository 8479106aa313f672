// Blocks of attention by ATen's plain operators, in float32: where no kernel takes them. Slow, and holds the
// scores of 256 rows at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "core/nn/block_attention.h"
#include "core/tokens/context_split.h"

namespace pptrain::nn {

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

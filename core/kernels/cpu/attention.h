// Causal attention for the CPU. In blocks of query rows, whose scores exist at full width; blocks above the
// diagonal are skipped. The row statistics and the backward pass are FlashAttention-2's (Dao, arXiv
// 2307.08691). Key-value heads are shared by their group of query heads without copies, and gradients of a
// group are summed in float32.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/tokens/segments.h"

namespace pptrain::kernels::cpu {

// out = softmax(q k^T / sqrt(head_dim), causal) v, within each document of `segments` by itself. q, out: T
// [tokens, heads, head_dim]; k, v: T [tokens, kv_heads, head_dim]; any strides with the last one 1.
// logsumexp: float32 [heads, tokens], contiguous. A document's results do not depend on those beside it.
void causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                      const tokens::Segments& segments, at::Tensor& out, at::Tensor& logsumexp);

// Its gradients. dout, out, dq as q; dk, dv as k; any strides with the last one 1.
void causal_attention_backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                               const at::Tensor& v, const tokens::Segments& segments, const at::Tensor& out,
                               const at::Tensor& logsumexp, at::Tensor& dq, at::Tensor& dk, at::Tensor& dv);

}  // namespace pptrain::kernels::cpu

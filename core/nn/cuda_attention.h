// Causal attention on a GPU, by the library that attention_choice.h names.
#pragma once

#include "core/nn/causal_attention.h"

namespace pptrain::nn {

// As causal_attention and causal_attention_backward. `statistics.options` says how; the back end and what it
// leaves to the backward pass are noted there too. Documents of unequal lengths go with their starts,
// key-value heads without copies (but for float32).
at::Tensor cuda_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const tokens::Segments& segments, AttentionStatistics& statistics);
AttentionGradients cuda_attention_backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                                           const at::Tensor& v, const tokens::Segments& segments,
                                           const at::Tensor& out, const AttentionStatistics& statistics);

// The same by one back end.
at::Tensor cuda_attention_by(AttentionBackEnd back_end, const at::Tensor& q, const at::Tensor& k,
                             const at::Tensor& v, const tokens::Segments& segments,
                             AttentionStatistics& statistics);

// LibTorch's FlashAttention-2 adds in a fixed order where LibTorch's process-wide flag asks for it, and by no
// other means. A run sets the flag at its start (core/kernels/numerics.h); for who computes without a run,
// this sets it before a backward pass. It is never taken back: other threads may be computing.
void let_flash_be_deterministic(AttentionOptions options);

}  // namespace pptrain::nn

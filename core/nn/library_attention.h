// Causal attention by ATen's libraries: CUDA's, and the CPU's where our own kernel cannot run. They take
// batches of equal lengths: documents of unequal lengths go one by one, or with cumulative lengths where a
// library takes these.
#pragma once

#include "core/nn/causal_attention.h"

namespace pptrain::nn {

// As causal_attention and causal_attention_backward.
at::Tensor library_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                             const kernels::Segments& segments, AttentionStatistics& statistics);
AttentionGradients library_attention_backward(const at::Tensor& dout, const at::Tensor& q,
                                              const at::Tensor& k, const at::Tensor& v,
                                              const kernels::Segments& segments, const at::Tensor& out,
                                              const AttentionStatistics& statistics);

}  // namespace pptrain::nn

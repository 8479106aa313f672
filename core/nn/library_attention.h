// Causal attention by libraries: a GPU's (cuda_attention.h), and on the CPU, where our own kernel cannot run,
// ATen's, which takes batches of equal lengths: documents of unequal lengths go one by one.
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

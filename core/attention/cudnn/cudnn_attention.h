// Causal attention of grouped heads by cuDNN's graphs (its C++ frontend): forward and backward passes in
// bfloat16, key-value heads without copies, gradients written to their final places.
//
// A pair of plans serves each shape and set of strides. Every thread keeps those that it used last; they run
// on the thread's cuDNN handle and the current stream.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "core/attention/attention.h"

namespace pptrain::attention {

// Whether this program is built with it. The functions below throw Error if not.
bool has_cudnn_attention();

// Requirements of a call. q: bfloat16 [tokens, heads, head_dim]; k, v: [tokens, kv_heads, head_dim], kv_heads
// a divisor of heads; other strides than the last one are multiples of 8, and addresses of 16 bytes.

// Why cuDNN has no plans for both passes here; "" if it has. Makes them: up to seconds, once a shape.
std::string why_not_cudnn(const AttentionCall& call);

// Fills saved.out: bfloat16 [tokens, heads, head_dim], contiguous, and saved.logsumexp, of the scaled scores,
// by the natural logarithm: float32 [documents, heads, length], or of ragged documents [tokens, heads].
void cudnn_attention(Saved& saved);

// Fills dq, dk and dv. dout: contiguous. For documents that are a batch (cudnn_shape.h), dq, dk and dv are
// views of one contiguous [tokens, heads + 2 kv_heads, head_dim], in this order. For ragged ones, each is
// contiguous: cuDNN's working memory follows their strides there.
void cudnn_attention_backward(const at::Tensor& dout, const Saved& saved, const Gradients& grads);

}  // namespace pptrain::attention

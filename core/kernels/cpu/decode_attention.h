// Attention of one new token a document over its cached keys, for the CPU: two products of a vector with a
// matrix, which memory bounds.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

namespace pptrain::kernels::cpu {

// A document's keys and values of one layer: T [kv_heads, capacity, head_dim] each, contiguous, of which the
// first `keys` of each head are there.
struct CachedKeys {
  const void* k = nullptr;
  const void* v = nullptr;
  int64_t capacity = 0;
  int64_t keys = 0;
};

// out[i] = softmax(q[i] k^T / sqrt(head_dim)) v over the keys of documents[i]. q, out: T [documents, heads,
// head_dim], any strides with the last one 1. Sums and weights are float32; a document's results do not
// depend on those beside it.
void decode_attention(const at::Tensor& q, int64_t kv_heads, std::span<const CachedKeys> documents,
                      at::Tensor& out);

}  // namespace pptrain::kernels::cpu

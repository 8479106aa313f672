// The shapes that cuDNN's plans for attention are made for, and the offsets of ragged documents. Plans take
// long to make (a second or more), so lengths that change from step to step share plans. Host code, without
// CUDA.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/constant_pad_nd.h>

#include <algorithm>
#include <bit>
#include <cstdint>

namespace pptrain::attention {

struct CudnnShape {
  int64_t documents = 0;  // of the plan: with empty ones at the end, if ragged
  int64_t longest = 0;    // tokens that a document may have
  int64_t tokens = 0;     // that all documents may have together
  bool ragged = false;    // documents have lengths of their own

  bool operator==(const CudnnShape&) const = default;
};

// Documents of equal length are a batch if the length is a multiple of 64, as in training. All others are
// ragged: powers of two of documents and of the longest, multiples of 1024 tokens.
inline CudnnShape cudnn_shape(int64_t documents, int64_t longest, int64_t tokens, bool equal) {
  if (equal && longest % 64 == 0) return {documents, longest, tokens, false};
  const auto power = [](int64_t x) { return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(x))); };
  return {power(documents), power(std::max<int64_t>(longest, 128)), (tokens + 1023) / 1024 * 1024, true};
}

// Whether the backward pass sums in a fixed order. For ragged documents it always does. The other backward
// pass of cuDNN 9.19 gives wrong dq and dk if it is told how many tokens they have together (seen on an
// H100). If it is not told, it allocates memory for documents of the greatest length.
inline bool sums_in_order(const CudnnShape& shape, bool deterministic) {
  return deterministic || shape.ragged;
}

// Whether cuDNN 9.19's backward pass writes the gradient of the scores to memory: on Hopper the one that sums
// in order does; Blackwell's keeps it on the chip.
inline bool writes_score_gradient(bool in_order, int capability) {
  return in_order && capability < 100;
}

// Bytes of that gradient: bfloat16, filled up to whole tiles.
inline int64_t score_gradient_bytes(const CudnnShape& shape, int64_t heads) {
  const auto filled = [&](int64_t tile) { return (shape.longest + tile - 1) / tile * tile; };
  return shape.documents * heads * filled(64) * filled(128) * 2;
}

// In how many runs the backward pass takes the heads: the least divisor of kv_heads that keeps a run's
// gradient of the scores within 1 GiB, else kv_heads, each with up to 2 GiB. Returns 0 if one key-value head
// with its queries has more. Heads do not depend on each other, so bits do not depend on the parts.
inline int64_t backward_parts(const CudnnShape& shape, int64_t heads, int64_t kv_heads, bool deterministic,
                              int capability) {
  constexpr int64_t kGiB = int64_t{1} << 30;
  if (!writes_score_gradient(sums_in_order(shape, deterministic), capability)) return 1;
  for (int64_t parts = 1; parts <= kv_heads; ++parts) {
    if (kv_heads % parts == 0 && score_gradient_bytes(shape, heads / parts) <= kGiB) return parts;
  }
  return score_gradient_bytes(shape, heads / kv_heads) <= 2 * kGiB ? kv_heads : 0;
}

// int32 tensors for a plan of `documents`, of which the last ones are empty.
struct RaggedIndex {
  at::Tensor starts;   // [documents + 1]: in tokens
  at::Tensor lengths;  // [documents]

  // starts: int32 [n + 1], ascending, as those of Segments; documents >= n.
  RaggedIndex(const at::Tensor& own, int64_t documents, int64_t tokens)
      : starts(at::constant_pad_nd(own, {0, documents + 1 - own.size(0)}, tokens)),
        lengths(starts.narrow(0, 1, documents).sub(starts.narrow(0, 0, documents))) {}

  // First elements of documents in a tensor whose tokens are `stride` elements apart: cuDNN counts elements.
  at::Tensor offsets(int64_t stride) const { return starts.mul(stride); }
};

}  // namespace pptrain::attention

// The shapes that cuDNN's plans for attention are made for, and where ragged documents lie. Plans take long
// to make (a second or more), so lengths that change from step to step share plans. Host code, without CUDA.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/constant_pad_nd.h>

#include <algorithm>
#include <bit>
#include <cstdint>

namespace pptrain::kernels::cuda {

struct CudnnShape {
  int64_t documents = 0;  // of the plan: with empty ones at the end, if ragged
  int64_t longest = 0;    // tokens that a document may have
  int64_t tokens = 0;     // that all documents may have together
  bool ragged = false;    // documents have lengths of their own

  bool operator==(const CudnnShape&) const = default;
};

// Documents of equal length are a batch where the length is a multiple of 64, as training's are. All others
// are ragged: powers of two of documents and of the longest, multiples of 1024 tokens.
inline CudnnShape cudnn_shape(int64_t documents, int64_t longest, int64_t tokens, bool equal) {
  if (equal && longest % 64 == 0) return {documents, longest, tokens, false};
  const auto power = [](int64_t x) { return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(x))); };
  return {power(documents), power(std::max<int64_t>(longest, 128)), (tokens + 1023) / 1024 * 1024, true};
}

// int32 tensors for a plan of `documents`, of which the last ones are empty.
struct RaggedIndex {
  at::Tensor starts;   // [documents + 1]: in tokens
  at::Tensor lengths;  // [documents]

  // starts: int32 [n + 1], ascending, as those of Segments; documents >= n.
  RaggedIndex(const at::Tensor& own, int64_t documents, int64_t tokens)
      : starts(at::constant_pad_nd(own, {0, documents + 1 - own.size(0)}, tokens)),
        lengths(starts.narrow(0, 1, documents).sub(starts.narrow(0, 0, documents))) {}

  // Where documents begin in a tensor whose tokens are `stride` elements apart: cuDNN counts elements.
  at::Tensor offsets(int64_t stride) const { return starts.mul(stride); }
};

}  // namespace pptrain::kernels::cuda

// The softmax of a row of logits.
#pragma once

#include <cfloat>
#include <cmath>
#include <cstdint>

#include "core/kernels/cuda/device.cuh"

namespace pptrain::kernels::cuda {

// The label of a row that has no target.
inline constexpr int64_t ignored_label = -100;

struct Softmax {
  float max;
  float sum;  // of exp(x - max)
};

template <int N>
__device__ inline void add_pack(Softmax& own, const float (&x)[N]) {
  float max = own.max;
#pragma unroll
  for (int j = 0; j < N; ++j) {
    max = fmaxf(max, x[j]);
  }
  own.sum *= expf(own.max - max);
  own.max = max;
#pragma unroll
  for (int j = 0; j < N; ++j) {
    own.sum += expf(x[j] - max);
  }
}

// One pass over the row, two packs of a thread in flight, with a running maximum (Milakov & Gimelshein, arXiv
// 1805.02867). The maximum starts at the lowest finite number, so that logits of -inf count as 0 and a NaN
// stays one.
template <typename T, bool kVector>
__device__ Softmax softmax_of(const T* logits, int64_t vocab, float* scratch) {
  constexpr int N = pack_width<T>;
  const int64_t stride = static_cast<int64_t>(blockDim.x) * N;
  Softmax own{-FLT_MAX, 0.0F};
  for (int64_t i = static_cast<int64_t>(threadIdx.x) * N; i < vocab; i += 2 * stride) {
    float x[N];
    float after[N];
    const bool has_two = i + stride < vocab;
    load<kVector>(logits + i, vocab - i, x, -INFINITY);
    if (has_two) {
      load<kVector>(logits + i + stride, vocab - i - stride, after, -INFINITY);
    }
    add_pack(own, x);
    if (has_two) {
      add_pack(own, after);
    }
  }
  const float max = block_max(own.max, scratch);
  return {max, block_sum(own.sum * expf(own.max - max), scratch)};
}

}  // namespace pptrain::kernels::cuda

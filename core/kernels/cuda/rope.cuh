// What the kernels of norm_rope share: which lane works on which elements of a head, and the rotary tables.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "core/kernels/cuda/device.cuh"
#include "core/kernels/cuda/host.h"
#include "core/kernels/kernels.h"

namespace pptrain::kernels::cuda {

inline constexpr int most_parts = 2;       // of one launch: q and k
inline constexpr int64_t most_half = 512;  // of head_dim, that the lanes of a warp hold in registers

// A view [tokens, heads, head_dim] whose last stride is 1.
template <typename T>
struct Heads {
  T* data;
  int64_t token_stride;
  int64_t head_stride;

  __device__ T* at(int64_t token, int64_t head) const {
    return data + token * token_stride + head * head_stride;
  }
};

// A head is worked on by `lanes` neighbouring lanes of a warp, so several heads share a warp. Lane l takes
// packs l, l + lanes, ... of the first half, each as a pair with the pack that lies head_dim / 2 further.
struct HeadShape {
  int64_t half;  // head_dim / 2
  int lanes;     // a power of two, at most 32
};

// The pairs that a lane holds of a wide head; of others it holds one.
template <typename T>
inline constexpr int most_pairs = static_cast<int>(most_half / (warp_size * pack_width<T>));

// What this thread takes of its group's heads.
struct Lane {
  int64_t half;
  int64_t first;   // element where its first pair begins
  int64_t stride;  // to the next pair
  int in_group;
  int group;
  int groups;  // of the block

  __device__ Lane(const HeadShape& shape, int width)
      : half(shape.half),
        stride(static_cast<int64_t>(shape.lanes) * width),
        in_group(static_cast<int>(threadIdx.x) % shape.lanes),
        group(static_cast<int>(threadIdx.x) / shape.lanes),
        groups(static_cast<int>(blockDim.x) / shape.lanes) {
    first = static_cast<int64_t>(in_group) * width;
  }
  __device__ int64_t at(int pair) const { return first + pair * stride; }
};

// A lane's pairs of one head, unconverted.
template <typename T, int kPairs>
struct HeadPacks {
  static constexpr int N = pack_width<T>;
  Pack<T, N> low[kPairs];
  Pack<T, N> high[kPairs];

  // Zeros where there is no head, or nothing left of it.
  template <bool kVector>
  __device__ void load(const T* head, const Lane& lane) {
#pragma unroll
    for (int p = 0; p < kPairs; ++p) {
      const int64_t i = lane.at(p);
      const bool exists = head != nullptr && i < lane.half;
      low[p] = exists ? load_pack<kVector, N>(head + i, lane.half - i) : zero_pack<N, T>();
      high[p] = exists ? load_pack<kVector, N>(head + lane.half + i, lane.half - i) : zero_pack<N, T>();
    }
  }
};

struct RopeView {
  const float* cosine;  // [max_position, half]
  const float* sine;
  const int* positions;  // [tokens]
  int64_t max_position;
};

// Reads the table's angles for elements [i, i + N) of a half. A position outside the table gives NaN, never a
// read outside it.
template <bool kVector, int N>
__device__ inline void load_angles(const RopeView& rope, int64_t position, int64_t half, int64_t i,
                                   float (&cosine)[N], float (&sine)[N]) {
  if (position >= 0 && position < rope.max_position) {
    load<kVector>(rope.cosine + position * half + i, half - i, cosine);
    load<kVector>(rope.sine + position * half + i, half - i, sine);
  } else {
#pragma unroll
    for (int j = 0; j < N; ++j) {
      cosine[j] = sine[j] = NAN;
    }
  }
}

template <typename T>
Heads<const T> read_view(const Tensor& t) {
  return {input<T>(t), t.stride(0), t.stride(1)};
}

template <typename T>
Heads<T> write_view(const Tensor& t) {
  return {output<T>(t), t.stride(0), t.stride(1)};
}

inline RopeView view_of(const RopeTable& rope, const Tensor& positions) {
  return {input<float>(rope.cos), input<float>(rope.sin), input<int>(positions), rope.cos.size(0)};
}

// Errors: Error where a head is too wide for registers.
inline HeadShape head_shape(const Tensor& x, int width, const char* kernel) {
  const int64_t half = x.size(2) / 2;
  require(half <= most_half, kernel, "head_dim up to 1024");
  const auto packs = static_cast<uint64_t>(ceil_div(half, width));
  return {half, static_cast<int>(std::min<uint64_t>(std::bit_ceil(packs), warp_size))};
}

// Whether every head of a view begins on 16 bytes.
template <typename T>
bool has_aligned_heads(const Tensor& t) {
  constexpr int64_t width = pack_width<T>;
  return t.stride(0) % width == 0 && t.stride(1) % width == 0 && are_aligned(input<T>(t));
}

// dx = dy rotated back, of parts without weights.
void rotate_back(const std::vector<HeadsGradient>& parts, const RopeTable& rope, const Tensor& positions);

}  // namespace pptrain::kernels::cuda

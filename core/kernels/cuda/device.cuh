// Device helpers: packs of 16 bytes, and reductions in a fixed order.
//
// Bits never depend on alignment: a thread always handles whole packs of pack_width<T> elements, in the same
// order. It reads them at once (kVector: base aligned to 16 bytes and rows a multiple of a pack) or one by
// one.
#pragma once

#include <cstdint>

#include "core/kernels/cuda/cuda_api.h"

namespace pptrain::kernels::cuda {

inline constexpr int warp_size = 32;

template <typename T>
inline constexpr int pack_width = static_cast<int>(16 / sizeof(T));

template <typename T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Pack {
  T v[N];
};

template <typename T>
__device__ inline float round_to(float x) {
  return static_cast<float>(static_cast<T>(x));
}

// out = p[0..N) in float32; elements from `valid` on do not exist and read as `fill`.
template <bool kVector, int N, typename T>
__device__ inline void load(const T* p, int64_t valid, float (&out)[N], float fill = 0.0F) {
  if constexpr (kVector) {
    const Pack<T, N> pack = *reinterpret_cast<const Pack<T, N>*>(p);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      out[j] = static_cast<float>(pack.v[j]);
    }
  } else {
#pragma unroll
    for (int j = 0; j < N; ++j) {
      out[j] = j < valid ? static_cast<float>(p[j]) : fill;
    }
  }
}

template <typename T, int N>
__device__ inline Pack<T, N> to_pack(const float (&in)[N]) {
  Pack<T, N> pack;
#pragma unroll
  for (int j = 0; j < N; ++j) {
    pack.v[j] = static_cast<T>(in[j]);
  }
  return pack;
}

// p[0..min(N, valid)) = in, rounded to T. p: global memory.
template <bool kVector, int N, typename T>
__device__ inline void store(T* p, int64_t valid, const float (&in)[N]) {
  if constexpr (kVector) {
    store_wide(p, to_pack<T>(in));
  } else {
#pragma unroll
    for (int j = 0; j < N; ++j) {
      if (j < valid) {
        p[j] = static_cast<T>(in[j]);
      }
    }
  }
}

// The same for float32 in shared or global memory.
template <bool kVector, int N>
__device__ inline void store_anywhere(float* p, int64_t valid, const float (&in)[N]) {
  if constexpr (kVector) {
    *reinterpret_cast<Pack<float, N>*>(p) = to_pack<float>(in);
  } else {
    store<false>(p, valid, in);
  }
}

// As load, without conversion: a pack that is held costs 16 bytes of registers, whatever T is. Elements that
// do not exist read as 0.
template <bool kVector, int N, typename T>
__device__ inline Pack<T, N> load_pack(const T* p, int64_t valid) {
  if constexpr (kVector) {
    return *reinterpret_cast<const Pack<T, N>*>(p);
  } else {
    Pack<T, N> pack;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      pack.v[j] = j < valid ? p[j] : static_cast<T>(0.0F);
    }
    return pack;
  }
}

template <int N, typename T>
__device__ inline Pack<T, N> zero_pack() {
  Pack<T, N> pack;
#pragma unroll
  for (int j = 0; j < N; ++j) {
    pack.v[j] = static_cast<T>(0.0F);
  }
  return pack;
}

// The first index in [low, high) of ascending values whose value is above `value`; `high` if there is none.
template <typename Index, typename V>
__device__ inline Index first_above(const V* ascending, Index low, Index high, V value) {
  while (low < high) {
    const Index middle = low + (high - low) / 2;
    if (ascending[middle] <= value) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// Sum over each aligned group of `lanes` (a power of two up to 32) lanes; every lane gets the same bits. All
// 32 lanes of the warp must take part.
template <typename F>
__device__ inline F group_sum(F x, int lanes) {
  for (int offset = lanes / 2; offset > 0; offset /= 2) {
    x += __shfl_xor_sync(0xffffffffU, x, offset);
  }
  return x;
}

__device__ inline float warp_max(float x) {
  for (int offset = warp_size / 2; offset > 0; offset /= 2) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffU, x, offset));
  }
  return x;
}

// Sum over the block, the same bits in every thread, with one barrier. Every thread of the block must call
// it; `scratch` is shared memory for 32 values, and not that of the call before.
template <typename F>
__device__ inline F block_sum_in_turns(F x, F* scratch) {
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  x = group_sum(x, warp_size);
  if (lane == 0) {
    scratch[threadIdx.x / warp_size] = x;
  }
  __syncthreads();
  const bool exists = lane < static_cast<int>(blockDim.x) / warp_size;
  return group_sum(exists ? scratch[lane] : F{0}, warp_size);
}

// The same with any `scratch`, at the price of a second barrier.
template <typename F>
__device__ inline F block_sum(F x, F* scratch) {
  __syncthreads();  // the readers of an earlier call are done
  return block_sum_in_turns(x, scratch);
}

// As block_sum. NaNs are passed over.
__device__ inline float block_max(float x, float* scratch) {
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  x = warp_max(x);
  __syncthreads();
  if (lane == 0) {
    scratch[threadIdx.x / warp_size] = x;
  }
  __syncthreads();
  const bool exists = lane < static_cast<int>(blockDim.x) / warp_size;
  return warp_max(exists ? scratch[lane] : scratch[0]);
}

}  // namespace pptrain::kernels::cuda

#include <ATen/core/Tensor.h>

#include <bit>

#include "core/kernels/cuda/device.cuh"
#include "core/kernels/cuda/host.h"
#include "core/kernels/cuda/math.h"
#include "core/kernels/cuda/partial_sums.h"
#include "core/kernels/kernels.h"

namespace pptrain::kernels::cuda {
namespace {

constexpr int64_t most_threads = 256;
constexpr int64_t most_shared_bytes = 48 * 1024;

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
// packs l, l + lanes, ... of the first half and the packs that lie head_dim / 2 further.
struct HeadShape {
  int64_t tokens;
  int64_t heads;
  int64_t half;  // head_dim / 2
  int lanes;     // a power of two, at most 32
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
__device__ inline void load_angles(const RopeView& rope, int64_t token, int64_t half, int64_t i,
                                   float (&cosine)[N], float (&sine)[N]) {
  const int64_t position = rope.positions[token];
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

// One block a token.
template <typename T, bool kNorm, bool kVector>
__global__ void norm_rope_kernel(Heads<const T> x, const float* weight, float eps, RopeView rope,
                                 HeadShape shape, Heads<T> y, float* rstd) {
  constexpr int N = pack_width<T>;
  const int64_t token = blockIdx.x;
  const int64_t half = shape.half;
  const int lane = static_cast<int>(threadIdx.x) % shape.lanes;
  const int64_t first = static_cast<int64_t>(lane) * N;
  const int64_t stride = static_cast<int64_t>(shape.lanes) * N;
  const int64_t group = static_cast<int64_t>(threadIdx.x) / shape.lanes;
  const int64_t groups = static_cast<int64_t>(blockDim.x) / shape.lanes;
  // Every lane makes the same number of turns, since group_sum needs whole warps.
  for (int64_t turn = 0; turn < shape.heads; turn += groups) {
    const int64_t head = turn + group;
    const bool active = head < shape.heads;
    const T* const in = x.at(token, active ? head : 0);
    T* const out = y.at(token, active ? head : 0);
    float r = 1.0F;
    if constexpr (kNorm) {
      float squares = 0.0F;
      for (int64_t i = first; active && i < half; i += stride) {
        float a[N];
        float b[N];
        load<kVector>(in + i, half - i, a);
        load<kVector>(in + half + i, half - i, b);
#pragma unroll
        for (int j = 0; j < N; ++j) {
          squares = fmaf(a[j], a[j], fmaf(b[j], b[j], squares));
        }
      }
      r = 1.0F / sqrtf(group_sum(squares, shape.lanes) / static_cast<float>(2 * half) + eps);
      if (active && lane == 0) {
        rstd[token * shape.heads + head] = r;
      }
    }
    for (int64_t i = first; active && i < half; i += stride) {
      float a[N];
      float b[N];
      float cosine[N];
      float sine[N];
      load<kVector>(in + i, half - i, a);
      load<kVector>(in + half + i, half - i, b);
      load_angles<kVector>(rope, token, half, i, cosine, sine);
      if constexpr (kNorm) {
        float w[N];
        float v[N];
        load<kVector>(weight + i, half - i, w);
        load<kVector>(weight + half + i, half - i, v);
#pragma unroll
        for (int j = 0; j < N; ++j) {
          a[j] *= r * w[j];
          b[j] *= r * v[j];
        }
      }
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const Pair turned = rotate({a[j], b[j]}, cosine[j], sine[j]);
        a[j] = turned.first;
        b[j] = turned.second;
      }
      store<kVector>(out + i, half - i, a);
      store<kVector>(out + half + i, half - i, b);
    }
  }
}

// a, b = dy of elements i and i + half, rotated back.
template <bool kVector, int N, typename T>
__device__ inline void load_rotated_back(const T* dy, const RopeView& rope, int64_t token, int64_t half,
                                         int64_t i, float (&a)[N], float (&b)[N]) {
  float cosine[N];
  float sine[N];
  load<kVector>(dy + i, half - i, a);
  load<kVector>(dy + half + i, half - i, b);
  load_angles<kVector>(rope, token, half, i, cosine, sine);
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const Pair turned = rotate({a[j], b[j]}, cosine[j], -sine[j]);
    a[j] = turned.first;
    b[j] = turned.second;
  }
}

// A block a token: dx = dy rotated back. dx may be dy.
template <typename T, bool kVector>
__global__ void rope_backward_kernel(Heads<const T> dy, RopeView rope, HeadShape shape, Heads<T> dx) {
  constexpr int N = pack_width<T>;
  const int64_t token = blockIdx.x;
  const int64_t half = shape.half;
  const int64_t first = static_cast<int64_t>(threadIdx.x % shape.lanes) * N;
  const int64_t stride = static_cast<int64_t>(shape.lanes) * N;
  const int64_t groups = static_cast<int64_t>(blockDim.x) / shape.lanes;
  for (int64_t head = threadIdx.x / shape.lanes; head < shape.heads; head += groups) {
    const T* const in = dy.at(token, head);
    T* const out = dx.at(token, head);
    for (int64_t i = first; i < half; i += stride) {
      float a[N];
      float b[N];
      load_rotated_back<kVector>(in, rope, token, half, i, a, b);
      store<kVector>(out + i, half - i, a);
      store<kVector>(out + half + i, half - i, b);
    }
  }
}

// A strip of tokens a block. Each group of lanes keeps its own row of weight gradients in shared memory (a
// lane owns its columns, so no barrier is needed), and the block adds the groups' rows in order at the end.
template <typename T, bool kVector>
__global__ void norm_rope_backward_kernel(Heads<const T> dy, Heads<const T> x, const float* weight,
                                          const float* rstd, RopeView rope, HeadShape shape,
                                          int64_t tokens_per_block, Heads<T> dx, float* partials) {
  constexpr int N = pack_width<T>;
  const int64_t half = shape.half;
  const int lane = static_cast<int>(threadIdx.x) % shape.lanes;
  const int64_t first = static_cast<int64_t>(lane) * N;
  const int64_t stride = static_cast<int64_t>(shape.lanes) * N;
  const int64_t group = static_cast<int64_t>(threadIdx.x) / shape.lanes;
  const int64_t groups = static_cast<int64_t>(blockDim.x) / shape.lanes;
  float* const all_sums = dynamic_shared<float>();  // [groups, head_dim]
  float* const sums = all_sums + group * 2 * half;
  for (int64_t i = first; i < half; i += stride) {
    const float zero[N] = {};
    store<kVector>(sums + i, half - i, zero);
    store<kVector>(sums + half + i, half - i, zero);
  }
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * tokens_per_block;
  const int64_t end = begin + tokens_per_block < shape.tokens ? begin + tokens_per_block : shape.tokens;
  for (int64_t token = begin; token < end; ++token) {
    for (int64_t turn = 0; turn < shape.heads; turn += groups) {
      const int64_t head = turn + group;
      const bool active = head < shape.heads;
      const T* const gradient = dy.at(token, active ? head : 0);
      const T* const in = x.at(token, active ? head : 0);
      T* const out = dx.at(token, active ? head : 0);
      const float r = rstd[token * shape.heads + (active ? head : 0)];
      float dot = 0.0F;
      for (int64_t i = first; active && i < half; i += stride) {
        float g[N];
        float h[N];
        float a[N];
        float b[N];
        float w[N];
        float v[N];
        load_rotated_back<kVector>(gradient, rope, token, half, i, g, h);
        load<kVector>(in + i, half - i, a);
        load<kVector>(in + half + i, half - i, b);
        load<kVector>(weight + i, half - i, w);
        load<kVector>(weight + half + i, half - i, v);
#pragma unroll
        for (int j = 0; j < N; ++j) {
          dot = fmaf(g[j] * w[j], a[j], fmaf(h[j] * v[j], b[j], dot));
        }
      }
      const float scale = group_sum(dot, shape.lanes) / static_cast<float>(2 * half) * r * r;
      for (int64_t i = first; active && i < half; i += stride) {
        float g[N];
        float h[N];
        load_rotated_back<kVector>(gradient, rope, token, half, i, g, h);
        const auto finish = [&](int64_t at, float(&d)[N]) {  // one half: d becomes dx
          float a[N];
          float w[N];
          float s[N];
          load<kVector>(in + at, half - i, a);
          load<kVector>(weight + at, half - i, w);
          load<kVector>(sums + at, half - i, s);
#pragma unroll
          for (int j = 0; j < N; ++j) {
            s[j] += d[j] * a[j] * r;
            d[j] = r * (d[j] * w[j] - a[j] * scale);
          }
          store<kVector>(sums + at, half - i, s);
          store<kVector>(out + at, half - i, d);
        };
        finish(i, g);
        finish(half + i, h);
      }
    }
  }
  __syncthreads();
  for (int64_t column = threadIdx.x; column < 2 * half; column += blockDim.x) {
    float total = 0.0F;
    for (int64_t g = 0; g < groups; ++g) {
      total += all_sums[g * 2 * half + column];
    }
    partials[static_cast<int64_t>(blockIdx.x) * 2 * half + column] = total;
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

bool has_strides_of(const Tensor& t, int64_t pack) {
  return t.stride(0) % pack == 0 && t.stride(1) % pack == 0;
}

RopeView view_of(const RopeTable& rope, const Tensor& positions) {
  return {input<float>(rope.cos), input<float>(rope.sin), input<int>(positions), rope.cos.size(0)};
}

HeadShape shape_of(const Tensor& x, int pack) {
  const int64_t half = x.size(2) / 2;
  const auto packs = static_cast<uint64_t>(ceil_div(half, pack));
  const auto lanes = static_cast<int>(std::min<uint64_t>(std::bit_ceil(packs), warp_size));
  return {x.size(0), x.size(1), half, lanes};
}

}  // namespace

void norm_rope(const Tensor& x, const std::optional<Tensor>& weight, double eps, const RopeTable& rope,
               const Tensor& positions, Tensor& y, Tensor& rstd) {
  const char* const name = "norm_rope";
  if (x.numel() == 0) {
    return;
  }
  const DeviceGuard guard(x.device());
  with_type(x.scalar_type(), name, [&](auto tag) {
    using T = decltype(tag);
    constexpr int N = pack_width<T>;
    const HeadShape shape = shape_of(x, N);
    const bool vector = shape.half % N == 0 && has_strides_of(x, N) && has_strides_of(y, N) &&
                        are_aligned(input<T>(x), input<float>(weight), input<float>(rope.cos),
                                    input<float>(rope.sin), input<T>(y));
    with_bool(vector, [&](auto is_vector) {
      with_bool(weight.has_value(), [&](auto is_normed) {
        constexpr bool kNorm = decltype(is_normed)::value;
        launch(name, norm_rope_kernel<T, kNorm, decltype(is_vector)::value>, grid_size(shape.tokens, name),
               threads_for(shape.heads * shape.lanes, most_threads), 0, read_view<T>(x), input<float>(weight),
               static_cast<float>(eps), view_of(rope, positions), shape, write_view<T>(y),
               kNorm ? output<float>(rstd) : nullptr);
      });
    });
  });
}

namespace {

template <typename T, bool kVector>
void run_norm_rope_backward(const Tensor& dy, const Tensor& x, const Tensor& weight, const Tensor& rstd,
                            const RopeView& rope, const HeadShape& shape, const Tensor& dx,
                            const Tensor& weight_grad) {
  const char* const name = "norm_rope_backward";
  const int64_t bytes_per_group = 2 * shape.half * static_cast<int64_t>(sizeof(float));
  unsigned threads = threads_for(shape.heads * shape.lanes, most_threads);
  while (threads > warp_size && threads / shape.lanes * bytes_per_group > most_shared_bytes) {
    threads -= warp_size;
  }
  const int64_t shared_bytes = threads / shape.lanes * bytes_per_group;
  require(shared_bytes <= most_shared_bytes, name, "head_dim up to 12288 with a norm");
  const Strips strips = split_rows(shape.tokens, 4);
  const Tensor partials = empty_partial_sums(x, strips.count, 2 * shape.half);
  launch(name, norm_rope_backward_kernel<T, kVector>, grid_size(strips.count, name), threads, shared_bytes,
         read_view<T>(dy), read_view<T>(x), input<float>(weight), input<float>(rstd), rope, shape,
         strips.rows, write_view<T>(dx), output<float>(partials));
  add_partial_sums(partials, weight_grad);
}

}  // namespace

void norm_rope_backward(const Tensor& dy, const Tensor& x, const std::optional<Tensor>& weight,
                        const Tensor& rstd, const RopeTable& rope, const Tensor& positions, Tensor& dx,
                        const std::optional<Tensor>& weight_grad) {
  const char* const name = "norm_rope_backward";
  if (dy.numel() == 0) {
    return;
  }
  const DeviceGuard guard(dy.device());
  with_type(dy.scalar_type(), name, [&](auto tag) {
    using T = decltype(tag);
    constexpr int N = pack_width<T>;
    const HeadShape shape = shape_of(dy, N);
    const RopeView angles = view_of(rope, positions);
    const bool vector = shape.half % N == 0 && has_strides_of(dy, N) && has_strides_of(dx, N) &&
                        are_aligned(input<T>(dy), angles.cosine, angles.sine, input<T>(dx));
    if (!weight) {
      with_bool(vector, [&](auto is_vector) {
        launch(name, rope_backward_kernel<T, decltype(is_vector)::value>, grid_size(shape.tokens, name),
               threads_for(shape.heads * shape.lanes, most_threads), 0, read_view<T>(dy), angles, shape,
               write_view<T>(dx));
      });
      return;
    }
    with_bool(vector && has_strides_of(x, N) && are_aligned(input<T>(x), input<float>(weight)),
              [&](auto is_vector) {
                run_norm_rope_backward<T, decltype(is_vector)::value>(dy, x, *weight, rstd, angles, shape, dx,
                                                                      *weight_grad);
              });
  });
}

void add_rope_kernels() {
  kernels::norm_rope.implement(BackEnd::cuda, norm_rope);
  kernels::norm_rope_backward.implement(BackEnd::cuda, norm_rope_backward);
}

}  // namespace pptrain::kernels::cuda

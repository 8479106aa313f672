#include <ATen/core/Tensor.h>

#include "core/kernels/cuda/device.cuh"
#include "core/kernels/cuda/host.h"
#include "core/kernels/cuda/partial_sums.h"
#include "core/kernels/cuda/rows.cuh"
#include "core/kernels/kernels.h"

namespace pptrain::kernels::cuda {
namespace {

constexpr int64_t most_norm_threads = 512;
constexpr int64_t most_shared_bytes = 48 * 1024;
constexpr int norm_packs = 4;      // of a row, that a thread of rms_norm holds in registers
constexpr int backward_packs = 2;  // of each operand's row, that a thread of rms_norm_backward holds
constexpr int64_t rows_of_narrow_block = 4;
// Strips of rms_norm_backward at most: the blocks that an H200's 132 multiprocessors hold at once, so that
// none is left over for a second wave. A multiprocessor holds 512 threads of 128 registers, in whole blocks.
constexpr int64_t most_norm_strips(unsigned threads) {
  return 132 * (512 / threads);
}

struct NormShape {
  int64_t rows, dim;
  bool own_warp;  // each row has a warp for itself: no barrier
};

// A thread's packs of one row.
template <typename T, int kCount>
struct RowPacks {
  Pack<T, pack_width<T>> v[kCount];

  // Packs that begin at first, first + stride, ... of a row of `dim` elements.
  template <bool kVector>
  __device__ void load(const T* row, int64_t first, int64_t stride, int64_t dim) {
#pragma unroll
    for (int p = 0; p < kCount; ++p) {
      const int64_t i = first + p * stride;
      v[p] = i < dim ? load_pack<kVector, pack_width<T>>(row + i, dim - i) : zero_pack<pack_width<T>, T>();
    }
  }
};

// A row stays in registers between its sum of squares and its result, so that it is read once. With kAdd the
// row is x + delta, rounded as it is stored, and everything after the addition is the code of the separate
// form, so both agree bit for bit. A thread reads its elements before it writes them.
template <typename T, bool kAdd, bool kVector>
__global__ void __launch_bounds__(most_norm_threads)
    rms_norm_kernel(const T* x, const T* delta, const float* weight, float eps, NormShape shape, T* sum, T* y,
                    float* rstd) {
  constexpr int N = pack_width<T>;
  __shared__ float scratch[warp_size];
  const unsigned threads = shape.own_warp ? warp_size : blockDim.x;
  const unsigned thread = threadIdx.x % threads;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (blockDim.x / threads) + threadIdx.x / threads;
  if (row >= shape.rows) {
    return;  // a whole warp, in a block without barriers
  }
  const int64_t dim = shape.dim;
  const int64_t base = row * dim;
  const int64_t first = static_cast<int64_t>(thread) * N;
  const int64_t stride = static_cast<int64_t>(threads) * N;
  RowPacks<T, norm_packs> held;
  held.template load<kVector>(x + base, first, stride, dim);
  if constexpr (kAdd) {
    RowPacks<T, norm_packs> other;
    other.template load<kVector>(delta + base, first, stride, dim);
#pragma unroll
    for (int p = 0; p < norm_packs; ++p) {
      float a[N];
#pragma unroll
      for (int j = 0; j < N; ++j) {
        a[j] = static_cast<float>(held.v[p].v[j]) + static_cast<float>(other.v[p].v[j]);
        held.v[p].v[j] = static_cast<T>(a[j]);
      }
      if (const int64_t i = first + p * stride; i < dim) {
        store<kVector>(sum + base + i, dim - i, a);
      }
    }
  }
  float squares = 0.0F;
#pragma unroll
  for (int p = 0; p < norm_packs; ++p) {
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const auto a = static_cast<float>(held.v[p].v[j]);
      squares = fmaf(a, a, squares);
    }
  }
  squares = shape.own_warp ? group_sum(squares, warp_size) : block_sum_in_turns(squares, scratch);
  const float r = 1.0F / sqrtf(squares / static_cast<float>(dim) + eps);
  if (thread == 0) {
    rstd[row] = r;
  }
#pragma unroll
  for (int p = 0; p < norm_packs; ++p) {
    if (const int64_t i = first + p * stride; i < dim) {
      float w[N];
      load<kVector>(weight + i, dim - i, w);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        w[j] = static_cast<float>(held.v[p].v[j]) * r * w[j];
      }
      store<kVector>(y + base + i, dim - i, w);
    }
  }
}

// The same for rows too long for registers, read twice: one block a row. With kAdd a thread reads back only
// what it wrote.
template <typename T, bool kAdd, bool kVector>
__global__ void rms_norm_wide_kernel(const T* x, const T* delta, const float* weight, float eps, int64_t dim,
                                     T* sum, T* y, float* rstd) {
  constexpr int N = pack_width<T>;
  __shared__ float scratch[warp_size];
  const int64_t row = blockIdx.x;
  const int64_t first = static_cast<int64_t>(threadIdx.x) * N;
  const int64_t stride = static_cast<int64_t>(blockDim.x) * N;
  float squares = 0.0F;
  for (int64_t i = first; i < dim; i += stride) {
    float a[N];
    load<kVector>(x + row * dim + i, dim - i, a);
    if constexpr (kAdd) {
      float b[N];
      load<kVector>(delta + row * dim + i, dim - i, b);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        a[j] = round_to<T>(a[j] + b[j]);
      }
      store<kVector>(sum + row * dim + i, dim - i, a);
    }
#pragma unroll
    for (int j = 0; j < N; ++j) {
      squares = fmaf(a[j], a[j], squares);
    }
  }
  const float r = 1.0F / sqrtf(block_sum(squares, scratch) / static_cast<float>(dim) + eps);
  if (threadIdx.x == 0) {
    rstd[row] = r;
  }
  const T* source = (kAdd ? sum : x) + row * dim;
  for (int64_t i = first; i < dim; i += stride) {
    float a[N];
    float w[N];
    load<kVector>(source + i, dim - i, a);
    load<kVector>(weight + i, dim - i, w);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      a[j] = a[j] * r * w[j];
    }
    store<kVector>(y + row * dim + i, dim - i, a);
  }
}

template <bool kAdd>
void run_rms_norm(const char* name, const Tensor& x, const Tensor& delta, const Tensor& weight, double eps,
                  const Tensor& sum, const Tensor& y, const Tensor& rstd) {
  const int64_t rows = x.size(0);
  const int64_t dim = x.size(1);
  const auto run = [&]<typename T, bool kVector>(T, std::bool_constant<kVector>) {
    const int64_t packs = ceil_div(dim, pack_width<T>);
    if (packs > most_norm_threads * norm_packs) {
      launch(name, rms_norm_wide_kernel<T, kAdd, kVector>, grid_size(rows, name), most_norm_threads, 0,
             input<T>(x), input<T>(delta), input<float>(weight), static_cast<float>(eps), dim, output<T>(sum),
             output<T>(y), output<float>(rstd));
      return;
    }
    const NormShape shape{rows, dim, packs <= warp_size * norm_packs};
    const int64_t in_block = shape.own_warp ? rows_of_narrow_block : 1;
    launch(name, rms_norm_kernel<T, kAdd, kVector>, grid_size(ceil_div(rows, in_block), name),
           shape.own_warp ? static_cast<unsigned>(in_block * warp_size)
                          : threads_for(ceil_div(packs, norm_packs), most_norm_threads),
           0, input<T>(x), input<T>(delta), input<float>(weight), static_cast<float>(eps), shape,
           output<T>(sum), output<T>(y), output<float>(rstd));
  };
  with_packs(name, x, run, x, delta, weight, sum, y);
}

struct BackwardShape {
  int64_t rows;
  int64_t rows_per_block;
  int64_t dim;
  bool sums_in_shared;
};

// A strip of rows a block. A thread owns the same columns in every row. Its registers hold their weights, the
// sums of their weight gradient (in row order) and the row. The next row is on its way while this one is
// reduced:
//   dx = rstd * (dy * w - x * rstd^2 * mean(dy * w * x)) + residual
template <typename T, bool kVector>
__global__ void __launch_bounds__(most_norm_threads)
    rms_norm_backward_kernel(const T* dy, const T* x, const float* weight, const float* rstd,
                             const T* residual, BackwardShape shape, T* dx, float* partials) {
  constexpr int N = pack_width<T>;
  __shared__ float scratch[2][warp_size];
  const int64_t dim = shape.dim;
  const int64_t first = static_cast<int64_t>(threadIdx.x) * N;
  const int64_t stride = static_cast<int64_t>(blockDim.x) * N;
  float w[backward_packs][N];
  float sums[backward_packs][N];
#pragma unroll
  for (int p = 0; p < backward_packs; ++p) {
    const int64_t i = first + p * stride;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      w[p][j] = sums[p][j] = 0.0F;
    }
    if (i < dim) {
      load<kVector>(weight + i, dim - i, w[p]);
    }
  }
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * shape.rows_per_block;
  const int64_t end = begin + shape.rows_per_block < shape.rows ? begin + shape.rows_per_block : shape.rows;
  RowPacks<T, backward_packs> g;
  RowPacks<T, backward_packs> a;
  g.template load<kVector>(dy + begin * dim, first, stride, dim);
  a.template load<kVector>(x + begin * dim, first, stride, dim);
  for (int64_t row = begin; row < end; ++row) {
    const int64_t base = row * dim;
    const float r = rstd[row];
    RowPacks<T, backward_packs> extra{};
    RowPacks<T, backward_packs> next_g{};
    RowPacks<T, backward_packs> next_a{};
    if (residual != nullptr) {
      extra.template load<kVector>(residual + base, first, stride, dim);
    }
    if (row + 1 < end) {
      next_g.template load<kVector>(dy + base + dim, first, stride, dim);
      next_a.template load<kVector>(x + base + dim, first, stride, dim);
    }
    float dot = 0.0F;
#pragma unroll
    for (int p = 0; p < backward_packs; ++p) {
#pragma unroll
      for (int j = 0; j < N; ++j) {
        dot = fmaf(static_cast<float>(g.v[p].v[j]) * w[p][j], static_cast<float>(a.v[p].v[j]), dot);
      }
    }
    const float mean = block_sum_in_turns(dot, scratch[(row - begin) % 2]) / static_cast<float>(dim);
    const float scale = mean * r * r;
#pragma unroll
    for (int p = 0; p < backward_packs; ++p) {
      float out[N];
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const auto gradient = static_cast<float>(g.v[p].v[j]);
        const auto value = static_cast<float>(a.v[p].v[j]);
        sums[p][j] += gradient * value * r;
        out[j] = static_cast<float>(extra.v[p].v[j]) + r * (gradient * w[p][j] - value * scale);
      }
      if (const int64_t i = first + p * stride; i < dim) {
        store<kVector>(dx + base + i, dim - i, out);
      }
    }
    g = next_g;
    a = next_a;
  }
#pragma unroll
  for (int p = 0; p < backward_packs; ++p) {
    if (const int64_t i = first + p * stride; i < dim) {
      store<kVector>(partials + static_cast<int64_t>(blockIdx.x) * dim + i, dim - i, sums[p]);
    }
  }
}

// The same for rows too long for registers, read twice: the sums are in shared memory, or for a very wide row
// in their place in `partials`.
template <typename T, bool kVector>
__global__ void rms_norm_backward_wide_kernel(const T* dy, const T* x, const float* weight, const float* rstd,
                                              const T* residual, BackwardShape shape, T* dx,
                                              float* partials) {
  constexpr int N = pack_width<T>;
  __shared__ float scratch[warp_size];
  const int64_t dim = shape.dim;
  float* const partial = partials + static_cast<int64_t>(blockIdx.x) * dim;
  float* const sums = shape.sums_in_shared ? dynamic_shared<float>() : partial;
  const int64_t first = static_cast<int64_t>(threadIdx.x) * N;
  const int64_t stride = static_cast<int64_t>(blockDim.x) * N;
  for (int64_t i = first; i < dim; i += stride) {
    const float zero[N] = {};
    store_anywhere<kVector>(sums + i, dim - i, zero);
  }
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * shape.rows_per_block;
  const int64_t end = begin + shape.rows_per_block < shape.rows ? begin + shape.rows_per_block : shape.rows;
  for (int64_t row = begin; row < end; ++row) {
    const int64_t base = row * dim;
    float dot = 0.0F;
    for (int64_t i = first; i < dim; i += stride) {
      float g[N];
      float a[N];
      float w[N];
      load<kVector>(dy + base + i, dim - i, g);
      load<kVector>(x + base + i, dim - i, a);
      load<kVector>(weight + i, dim - i, w);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        dot = fmaf(g[j] * w[j], a[j], dot);
      }
    }
    const float r = rstd[row];
    const float scale = block_sum(dot, scratch) / static_cast<float>(dim) * r * r;
    for (int64_t i = first; i < dim; i += stride) {
      float g[N];
      float a[N];
      float w[N];
      float s[N];
      float extra[N] = {};
      load<kVector>(dy + base + i, dim - i, g);
      load<kVector>(x + base + i, dim - i, a);
      load<kVector>(weight + i, dim - i, w);
      load<kVector>(sums + i, dim - i, s);
      if (residual != nullptr) {
        load<kVector>(residual + base + i, dim - i, extra);
      }
#pragma unroll
      for (int j = 0; j < N; ++j) {
        s[j] += g[j] * a[j] * r;
        extra[j] += r * (g[j] * w[j] - a[j] * scale);
      }
      store_anywhere<kVector>(sums + i, dim - i, s);
      store<kVector>(dx + base + i, dim - i, extra);
    }
  }
  if (shape.sums_in_shared) {
    for (int64_t i = first; i < dim; i += stride) {
      float s[N];
      load<kVector>(sums + i, dim - i, s);
      store<kVector>(partial + i, dim - i, s);
    }
  }
}

}  // namespace

void rms_norm(const Tensor& x, const Tensor& weight, double eps, Tensor& y, Tensor& rstd) {
  run_rms_norm<false>("rms_norm", x, x, weight, eps, y, y, rstd);
}

void add_rms_norm(const Tensor& x, const Tensor& delta, const Tensor& weight, double eps, Tensor& sum,
                  Tensor& y, Tensor& rstd) {
  run_rms_norm<true>("add_rms_norm", x, delta, weight, eps, sum, y, rstd);
}

void rms_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& weight, const Tensor& rstd,
                       const std::optional<Tensor>& residual_grad, Tensor& dx, Tensor& weight_grad) {
  const char* const name = "rms_norm_backward";
  const int64_t rows = x.size(0);
  const int64_t dim = x.size(1);
  // Partial sums are aligned, as all new tensors are.
  const auto run = [&]<typename T, bool kVector>(T, std::bool_constant<kVector>) {
    const int64_t packs = ceil_div(dim, pack_width<T>);
    const bool wide = packs > most_norm_threads * backward_packs;
    const unsigned threads =
        wide ? most_norm_threads : threads_for(ceil_div(packs, backward_packs), most_norm_threads);
    const Strips strips = split_rows(rows, 4, most_norm_strips(threads));
    const Tensor partials = empty_partial_sums(x, strips.count, dim);
    const int64_t bytes = dim * static_cast<int64_t>(sizeof(float));
    const BackwardShape shape{rows, strips.rows, dim, bytes <= most_shared_bytes - 1024};
    launch(name, wide ? rms_norm_backward_wide_kernel<T, kVector> : rms_norm_backward_kernel<T, kVector>,
           grid_size(strips.count, name), threads, wide && shape.sums_in_shared ? bytes : 0, input<T>(dy),
           input<T>(x), input<float>(weight), input<float>(rstd), input<T>(residual_grad), shape,
           output<T>(dx), output<float>(partials));
    add_partial_sums(partials, weight_grad);
  };
  with_packs(name, x, run, dy, x, weight, residual_grad, dx);
}

void add_norm_kernels() {
  kernels::rms_norm.implement(BackEnd::cuda, rms_norm);
  kernels::add_rms_norm.implement(BackEnd::cuda, add_rms_norm);
  kernels::rms_norm_backward.implement(BackEnd::cuda, rms_norm_backward);
}

}  // namespace pptrain::kernels::cuda

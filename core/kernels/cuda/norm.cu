#include <ATen/core/Tensor.h>

#include "core/kernels/cuda/device.cuh"
#include "core/kernels/cuda/host.h"
#include "core/kernels/cuda/partial_sums.h"
#include "core/kernels/kernels.h"

namespace pptrain::kernels::cuda {
namespace {

constexpr int64_t most_threads = 512;
constexpr int64_t most_shared_bytes = 48 * 1024;

// One block a row. With kAdd the row is x + delta, which is also stored; a thread reads back only what it
// wrote, and everything after the addition is the code of the separate form, so both agree bit for bit.
template <typename T, bool kAdd, bool kVector>
__global__ void rms_norm_kernel(const T* x, const T* delta, const float* weight, float eps, int64_t dim,
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
  if (x.numel() == 0) {
    return;
  }
  const DeviceGuard guard(x.device());
  with_type(x.scalar_type(), name, [&](auto tag) {
    using T = decltype(tag);
    constexpr int N = pack_width<T>;
    const bool vector = dim % N == 0 && are_aligned(input<T>(x), input<T>(delta), input<float>(weight),
                                                    input<T>(sum), input<T>(y));
    with_bool(vector, [&](auto is_vector) {
      launch(name, rms_norm_kernel<T, kAdd, decltype(is_vector)::value>, grid_size(rows, name),
             threads_for(ceil_div(dim, N), most_threads), 0, input<T>(x), input<T>(delta),
             input<float>(weight), static_cast<float>(eps), dim, output<T>(sum), output<T>(y),
             output<float>(rstd));
    });
  });
}

struct BackwardShape {
  int64_t rows;
  int64_t rows_per_block;
  int64_t dim;
  bool sums_in_shared;
};

// A strip of rows a block. A thread owns the same columns in every row: it adds their weight gradient to
// `sums` (shared memory, or for a very wide row its place in `partials`) in row order, without a barrier.
//   dx = rstd * (dy * w - x * rstd^2 * mean(dy * w * x)) + residual
template <typename T, bool kVector>
__global__ void rms_norm_backward_kernel(const T* dy, const T* x, const float* weight, const float* rstd,
                                         const T* residual, BackwardShape shape, T* dx, float* partials) {
  constexpr int N = pack_width<T>;
  __shared__ float scratch[warp_size];
  const int64_t dim = shape.dim;
  float* const partial = partials + static_cast<int64_t>(blockIdx.x) * dim;
  float* const sums = shape.sums_in_shared ? dynamic_shared<float>() : partial;
  const int64_t first = static_cast<int64_t>(threadIdx.x) * N;
  const int64_t stride = static_cast<int64_t>(blockDim.x) * N;
  for (int64_t i = first; i < dim; i += stride) {
    const float zero[N] = {};
    store<kVector>(sums + i, dim - i, zero);
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
      store<kVector>(sums + i, dim - i, s);
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
  if (x.numel() == 0) {
    return;
  }
  const DeviceGuard guard(x.device());
  const Strips strips = split_rows(rows, 4);
  const Tensor partials = empty_partial_sums(x, strips.count, dim);
  const int64_t bytes = dim * static_cast<int64_t>(sizeof(float));
  const BackwardShape shape{rows, strips.rows, dim, bytes <= most_shared_bytes - 1024};
  with_type(x.scalar_type(), name, [&](auto tag) {
    using T = decltype(tag);
    constexpr int N = pack_width<T>;
    const bool vector =
        dim % N == 0 && are_aligned(input<T>(dy), input<T>(x), input<float>(weight), input<T>(residual_grad),
                                    input<T>(dx), input<float>(partials));
    with_bool(vector, [&](auto is_vector) {
      launch(name, rms_norm_backward_kernel<T, decltype(is_vector)::value>, grid_size(strips.count, name),
             threads_for(ceil_div(dim, N), most_threads), shape.sums_in_shared ? bytes : 0, input<T>(dy),
             input<T>(x), input<float>(weight), input<float>(rstd), input<T>(residual_grad), shape,
             output<T>(dx), output<float>(partials));
    });
  });
  add_partial_sums(partials, weight_grad);
}

void add_norm_kernels() {
  kernels::rms_norm.implement(BackEnd::cuda, rms_norm);
  kernels::add_rms_norm.implement(BackEnd::cuda, add_rms_norm);
  kernels::rms_norm_backward.implement(BackEnd::cuda, rms_norm_backward);
}

}  // namespace pptrain::kernels::cuda

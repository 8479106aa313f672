#include <ATen/core/Tensor.h>

#include "core/kernels/cuda/device.cuh"
#include "core/kernels/cuda/host.h"
#include "core/kernels/cuda/math.h"
#include "core/kernels/kernels.h"

namespace pptrain::kernels::cuda {
namespace {

constexpr int64_t most_threads = 256;

// One block a row, in both directions.
template <typename T, bool kVector>
__global__ void swiglu_kernel(const T* gate_up, int64_t dim, T* y) {
  constexpr int N = pack_width<T>;
  const int64_t row = blockIdx.x;
  const T* const gate = gate_up + row * 2 * dim;
  const T* const up = gate + dim;
  const int64_t stride = static_cast<int64_t>(blockDim.x) * N;
  for (int64_t i = static_cast<int64_t>(threadIdx.x) * N; i < dim; i += stride) {
    float g[N];
    float u[N];
    load<kVector>(gate + i, dim - i, g);
    load<kVector>(up + i, dim - i, u);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      u[j] *= silu(g[j]);
    }
    store<kVector>(y + row * dim + i, dim - i, u);
  }
}

// dgate_up may be gate_up: a thread reads its elements of both halves before it writes them.
template <typename T, bool kVector>
__global__ void swiglu_backward_kernel(const T* dy, const T* gate_up, int64_t dim, T* dgate_up) {
  constexpr int N = pack_width<T>;
  const int64_t row = blockIdx.x;
  const int64_t base = row * 2 * dim;
  const int64_t stride = static_cast<int64_t>(blockDim.x) * N;
  for (int64_t i = static_cast<int64_t>(threadIdx.x) * N; i < dim; i += stride) {
    float d[N];
    float g[N];
    float u[N];
    load<kVector>(dy + row * dim + i, dim - i, d);
    load<kVector>(gate_up + base + i, dim - i, g);
    load<kVector>(gate_up + base + dim + i, dim - i, u);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const SwigluGradient gradient = swiglu_gradient(d[j], g[j], u[j]);
      g[j] = gradient.gate;
      u[j] = gradient.up;
    }
    store<kVector>(dgate_up + base + i, dim - i, g);
    store<kVector>(dgate_up + base + dim + i, dim - i, u);
  }
}

}  // namespace

void swiglu(const Tensor& gate_up, Tensor& y) {
  const char* const name = "swiglu";
  const int64_t rows = y.size(0);
  const int64_t dim = y.size(1);
  if (y.numel() == 0) {
    return;
  }
  const DeviceGuard guard(y.device());
  with_type(y.scalar_type(), name, [&](auto tag) {
    using T = decltype(tag);
    constexpr int N = pack_width<T>;
    with_bool(dim % N == 0 && are_aligned(input<T>(gate_up), input<T>(y)), [&](auto is_vector) {
      launch(name, swiglu_kernel<T, decltype(is_vector)::value>, grid_size(rows, name),
             threads_for(ceil_div(dim, N), most_threads), 0, input<T>(gate_up), dim, output<T>(y));
    });
  });
}

void swiglu_backward(const Tensor& dy, const Tensor& gate_up, Tensor& dgate_up) {
  const char* const name = "swiglu_backward";
  const int64_t rows = dy.size(0);
  const int64_t dim = dy.size(1);
  if (dy.numel() == 0) {
    return;
  }
  const DeviceGuard guard(dy.device());
  with_type(dy.scalar_type(), name, [&](auto tag) {
    using T = decltype(tag);
    constexpr int N = pack_width<T>;
    const bool vector = dim % N == 0 && are_aligned(input<T>(dy), input<T>(gate_up), input<T>(dgate_up));
    with_bool(vector, [&](auto is_vector) {
      launch(name, swiglu_backward_kernel<T, decltype(is_vector)::value>, grid_size(rows, name),
             threads_for(ceil_div(dim, N), most_threads), 0, input<T>(dy), input<T>(gate_up), dim,
             output<T>(dgate_up));
    });
  });
}

void add_swiglu_kernels() {
  kernels::swiglu.implement(BackEnd::cuda, swiglu);
  kernels::swiglu_backward.implement(BackEnd::cuda, swiglu_backward);
}

}  // namespace pptrain::kernels::cuda

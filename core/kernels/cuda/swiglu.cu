#include <ATen/core/Tensor.h>

#include "core/kernels/cuda/device.cuh"
#include "core/kernels/cuda/host.h"
#include "core/kernels/cuda/math.h"
#include "core/kernels/cuda/rows.cuh"
#include "core/kernels/kernels.h"

namespace pptrain::kernels::cuda {
namespace {

constexpr int64_t most_swiglu_threads = 256;
constexpr int packs = 2;  // of each operand, that a thread has in flight

// Where a thread's packs lie: a block takes `packs` packs a thread of one of the equal parts of a row.
template <typename T>
struct Place {
  int64_t row, first, stride;

  __device__ explicit Place(unsigned parts)
      : row(blockIdx.x / parts),
        first((static_cast<int64_t>(blockIdx.x % parts) * packs * blockDim.x + threadIdx.x) * pack_width<T>),
        stride(static_cast<int64_t>(blockDim.x) * pack_width<T>) {}
  __device__ int64_t at(int pack) const { return first + pack * stride; }
};

struct SwigluShape {
  unsigned threads;
  unsigned parts;  // of a row
  SwigluShape(int64_t dim, int width) {
    const int64_t row_packs = ceil_div(dim, width);
    const int64_t count = ceil_div(row_packs, packs * most_swiglu_threads);
    parts = static_cast<unsigned>(count);
    threads = threads_for(ceil_div(row_packs, count * packs), most_swiglu_threads);
  }
};

// What a kernel does with gate and up, or with an x whose up is 1.
struct SwigluFunction {
  static constexpr bool gated = true;
  PPTRAIN_HOST_DEVICE static float value(float gate, float up) { return swiglu_value(gate, up); }
  PPTRAIN_HOST_DEVICE static SwigluGradient gradient(float dy, float gate, float up) {
    return swiglu_gradient(dy, gate, up);
  }
};

template <Activation kActivation, bool kGated>
struct ActivationFunction {
  static constexpr bool gated = kGated;
  PPTRAIN_HOST_DEVICE static float value(float gate, float up) {
    return activated<kActivation>(gate).value * up;
  }
  PPTRAIN_HOST_DEVICE static SwigluGradient gradient(float dy, float gate, float up) {
    const Activated at = activated<kActivation>(gate);
    return {dy * up * at.slope, dy * at.value};
  }
};

// An x without a gate has one operand, whose up is 1.
template <class Function>
constexpr int operands = Function::gated ? 2 : 1;

template <class Function, typename T, int N>
__device__ inline float up_of(const Pack<T, N>& up, int j) {
  if constexpr (Function::gated) {
    return static_cast<float>(up.v[j]);
  } else {
    return 1.0F;
  }
}

template <typename T, bool kVector, class Function>
__global__ void __launch_bounds__(most_swiglu_threads)
    swiglu_kernel(const T* gate_up, int64_t dim, unsigned parts, T* y) {
  constexpr int N = pack_width<T>;
  const Place<T> place(parts);
  const T* const gate = gate_up + place.row * operands<Function> * dim;
  Pack<T, N> g[packs];
  Pack<T, N> u[packs];
#pragma unroll
  for (int p = 0; p < packs; ++p) {
    if (const int64_t i = place.at(p); i < dim) {
      g[p] = load_pack<kVector, N>(gate + i, dim - i);
      if constexpr (Function::gated) {
        u[p] = load_pack<kVector, N>(gate + dim + i, dim - i);
      }
    }
  }
#pragma unroll
  for (int p = 0; p < packs; ++p) {
    if (const int64_t i = place.at(p); i < dim) {
      float out[N];
#pragma unroll
      for (int j = 0; j < N; ++j) {
        out[j] = Function::value(static_cast<float>(g[p].v[j]), up_of<Function>(u[p], j));
      }
      store<kVector>(y + place.row * dim + i, dim - i, out);
    }
  }
}

// dgate_up may be gate_up, and y, if given, dy: a thread reads its elements before it writes them.
template <typename T, bool kVector, class Function>
__global__ void __launch_bounds__(most_swiglu_threads)
    swiglu_backward_kernel(const T* dy, const T* gate_up, int64_t dim, unsigned parts, T* dgate_up, T* y) {
  constexpr int N = pack_width<T>;
  const Place<T> place(parts);
  const int64_t base = place.row * operands<Function> * dim;
  Pack<T, N> d[packs];
  Pack<T, N> g[packs];
  Pack<T, N> u[packs];
#pragma unroll
  for (int p = 0; p < packs; ++p) {
    if (const int64_t i = place.at(p); i < dim) {
      d[p] = load_pack<kVector, N>(dy + place.row * dim + i, dim - i);
      g[p] = load_pack<kVector, N>(gate_up + base + i, dim - i);
      if constexpr (Function::gated) {
        u[p] = load_pack<kVector, N>(gate_up + base + dim + i, dim - i);
      }
    }
  }
#pragma unroll
  for (int p = 0; p < packs; ++p) {
    if (const int64_t i = place.at(p); i < dim) {
      float dgate[N];
      float dup[N];
      float value[N];
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const auto gate = static_cast<float>(g[p].v[j]);
        const float up = up_of<Function>(u[p], j);
        const SwigluGradient gradient = Function::gradient(static_cast<float>(d[p].v[j]), gate, up);
        dgate[j] = gradient.gate;
        dup[j] = gradient.up;
        value[j] = Function::value(gate, up);
      }
      store<kVector>(dgate_up + base + i, dim - i, dgate);
      if constexpr (Function::gated) {
        store<kVector>(dgate_up + base + dim + i, dim - i, dup);
      }
      if (y != nullptr) {
        store<kVector>(y + place.row * dim + i, dim - i, value);
      }
    }
  }
}

template <class Function>
void run(const char* name, const Tensor& x, Tensor& y) {
  const int64_t dim = y.size(1);
  const auto launch_one = [&]<typename T, bool kVector>(T, std::bool_constant<kVector>) {
    const SwigluShape shape(dim, pack_width<T>);
    launch(name, swiglu_kernel<T, kVector, Function>, grid_size(y.size(0) * shape.parts, name), shape.threads,
           0, input<T>(x), dim, shape.parts, output<T>(y));
  };
  with_packs(name, y, launch_one, x, y);
}

template <class Function>
void run_backward(const char* name, const Tensor& dy, const Tensor& x, Tensor& dx,
                  const std::optional<Tensor>& y) {
  const int64_t dim = dy.size(1);
  const auto launch_one = [&]<typename T, bool kVector>(T, std::bool_constant<kVector>) {
    const SwigluShape shape(dim, pack_width<T>);
    launch(name, swiglu_backward_kernel<T, kVector, Function>, grid_size(dy.size(0) * shape.parts, name),
           shape.threads, 0, input<T>(dy), input<T>(x), dim, shape.parts, output<T>(dx), output<T>(y));
  };
  with_packs(name, dy, launch_one, dy, x, dx, y);
}

// Calls f(Function{}).
template <bool kGated, typename F>
void with_activation(Activation activation, F&& f) {
  switch (activation) {
    case Activation::silu:
      return f(ActivationFunction<Activation::silu, kGated>{});
    case Activation::gelu:
      return f(ActivationFunction<Activation::gelu, kGated>{});
    case Activation::gelu_tanh:
      return f(ActivationFunction<Activation::gelu_tanh, kGated>{});
    case Activation::relu_squared:
      return f(ActivationFunction<Activation::relu_squared, kGated>{});
  }
}

// like: y, or dy.
template <typename F>
void with_function(const Tensor& x, Activation activation, const Tensor& like, F&& f) {
  with_bool(x.size(1) != like.size(1),
            [&](auto is_gated) { with_activation<decltype(is_gated)::value>(activation, f); });
}

}  // namespace

void swiglu(const Tensor& gate_up, Tensor& y) {
  run<SwigluFunction>("swiglu", gate_up, y);
}

void swiglu_backward(const Tensor& dy, const Tensor& gate_up, Tensor& dgate_up,
                     const std::optional<Tensor>& y) {
  run_backward<SwigluFunction>("swiglu_backward", dy, gate_up, dgate_up, y);
}

void activate(const Tensor& x, Activation activation, Tensor& y) {
  with_function(x, activation, y, [&](auto function) { run<decltype(function)>("activate", x, y); });
}

void activate_backward(const Tensor& dy, const Tensor& x, Activation activation, Tensor& dx,
                       const std::optional<Tensor>& y) {
  with_function(x, activation, dy,
                [&](auto function) { run_backward<decltype(function)>("activate_backward", dy, x, dx, y); });
}

void add_swiglu_kernels() {
  kernels::swiglu.implement(BackEnd::cuda, swiglu);
  kernels::swiglu_backward.implement(BackEnd::cuda, swiglu_backward);
  kernels::activate.implement(BackEnd::cuda, activate);
  kernels::activate_backward.implement(BackEnd::cuda, activate_backward);
}

}  // namespace pptrain::kernels::cuda

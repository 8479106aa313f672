// Replaces core/kernels/cuda/cuda_api.h when the C++ compiler compiles the kernels for the CPU: the same
// names, run by fibers. One block runs at a time; a thread of the block is a fiber that yields at each
// barrier and shuffle. If not all threads reach a barrier or a shuffle (undefined on hardware), that is an
// Error here.
#pragma once

#include <ATen/core/Tensor.h>

#include <cfloat>
#include <cmath>
#include <cstddef>
#include <functional>
#include <type_traits>

#define __global__
#define __device__
#define __shared__ static  // one block runs at a time
#define __launch_bounds__(...)
#define __grid_constant__

namespace pptrain::kernels::cuda {

struct dim3 {
  dim3(unsigned x_size, unsigned y_size = 1) : x(x_size), y(y_size) {}
  unsigned x;
  unsigned y;
};

inline dim3 threadIdx{0};
inline dim3 blockIdx{0};
inline dim3 blockDim{0};
inline dim3 gridDim{0};

struct DeviceGuard {
  explicit DeviceGuard(at::Device) {}
};

namespace emulator {

// If set, blocks, and threads between barriers, run from last to first. A result that changes with it shows a
// race.
inline bool reversed = false;

void run_grid(const char* name, dim3 grid, unsigned threads, std::size_t shared_bytes,
              const std::function<void()>& kernel);
void block_barrier();
double exchange(double x, int lane_mask);
void* shared_memory();

}  // namespace emulator

template <typename... Parameters>
void launch(const char* name, void (*kernel)(Parameters...), dim3 grid, unsigned threads,
            std::size_t shared_bytes, std::type_identity_t<Parameters>... arguments) {
  emulator::run_grid(name, grid, threads, shared_bytes, [&] { kernel(arguments...); });
}

template <typename T>
T* dynamic_shared() {
  return static_cast<T*>(emulator::shared_memory());
}

template <typename Words>
void store_wide(void* to, const Words& words) {
  *static_cast<Words*>(to) = words;  // UBSan reports less alignment than a GPU needs
}

inline void __syncthreads() {
  emulator::block_barrier();
}

// float and double pass through a double unchanged.
template <typename F>
F __shfl_xor_sync(unsigned, F x, int lane_mask) {
  return static_cast<F>(emulator::exchange(static_cast<double>(x), lane_mask));
}

inline unsigned long long atomicAdd(unsigned long long* address, unsigned long long value) {
  const unsigned long long before = *address;
  *address += value;
  return before;
}

}  // namespace pptrain::kernels::cuda

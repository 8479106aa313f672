// The door between the kernels and the CUDA runtime: device guard, stream, launch, shared memory. Kernels use
// nothing else of CUDA but the language itself, so that test/gpu/emulator can put another door here and run
// the very same kernel sources on a CPU.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstring>
#include <string>
#include <type_traits>

#include "core/base/error.h"

namespace pptrain::kernels::cuda {

// Makes the device of a tensor current until the end of the scope.
using DeviceGuard = c10::cuda::CUDAGuard;

// Starts `kernel` on the current stream of the current device. Blocks are one-dimensional and a multiple of a
// warp. Errors: Error with the kernel's name, also for a fault of an earlier asynchronous kernel that shows
// here.
template <typename... Parameters>
void launch(const char* name, void (*kernel)(Parameters...), dim3 grid, unsigned threads,
            std::size_t shared_bytes, std::type_identity_t<Parameters>... arguments) {
  kernel<<<grid, threads, shared_bytes, c10::cuda::getCurrentCUDAStream()>>>(arguments...);
  if (const cudaError_t status = cudaGetLastError(); status != cudaSuccess) {
    throw Error(std::string("CUDA kernel ") + name + ": " + cudaGetErrorString(status) +
                " (it may stem from an earlier kernel; CUDA_LAUNCH_BLOCKING=1 shows which)");
  }
}

#ifdef __CUDACC__
// The block's dynamic shared memory, aligned to 16 bytes.
template <typename T>
__device__ inline T* dynamic_shared() {
  extern __shared__ __align__(16) unsigned char dynamic_shared_bytes[];
  return reinterpret_cast<T*>(dynamic_shared_bytes);
}

// Stores 8 bytes, or a multiple of 16, to global memory at an address that is a multiple of 8 or 16, by
// instructions as wide as that. In assembly, since nvcc 13 stores many a struct word by word: four times the
// instructions, each of which writes a quarter of every sector that a warp touches.
template <typename Words>
__device__ inline void store_wide(void* to, const Words& words) {
  using Wide = std::conditional_t<sizeof(Words) == 8, uint2, uint4>;
  constexpr std::size_t count = sizeof(Words) / sizeof(Wide);
  static_assert(count * sizeof(Wide) == sizeof(Words));
  const std::size_t address = __cvta_generic_to_global(to);
  Wide wide[count];
  memcpy(wide, &words, sizeof(Words));
#pragma unroll
  for (std::size_t i = 0; i < count; ++i) {
    const Wide& w = wide[i];
    if constexpr (sizeof(Wide) == 8) {
      asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(address), "r"(w.x), "r"(w.y) : "memory");
    } else {
      asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(address + i * sizeof(Wide)), "r"(w.x),
                   "r"(w.y), "r"(w.z), "r"(w.w)
                   : "memory");
    }
  }
}
#endif

}  // namespace pptrain::kernels::cuda

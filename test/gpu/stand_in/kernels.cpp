// Kernels: known by name, never run. A launch that no GPU accepts is refused.
#include <cuda_runtime_api.h>
#include <vector_types.h>

#include <atomic>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "test/gpu/stand_in/journal.h"

namespace {

using namespace stand_in;

struct Kernel {
  std::string name;                      // mangled
  std::atomic<size_t> shared_bytes = 0;  // allowed dynamic bytes beyond 48 KiB
};

struct Kernels {
  std::mutex mutex;
  std::unordered_map<const void*, Kernel*> by_host_function;  // never freed, as a program's code
};

Kernels& kernels() {
  static auto& made = *new Kernels;  // used while libraries are loaded
  return made;
}

Kernel* find(const void* function) {
  const std::lock_guard lock(kernels().mutex);
  const auto kernel = kernels().by_host_function.find(function);
  return kernel == kernels().by_host_function.end() ? nullptr : kernel->second;
}

struct Launch {
  dim3 grid, block;
  size_t shared_bytes;
  cudaStream_t stream;
};

thread_local std::vector<Launch> pending;  // from <<<>>>

cudaError_t launch(const Kernel* kernel, const Launch& l) {
  if (kernel == nullptr) return refuse(cudaErrorInvalidDeviceFunction, "a launch of no kernel");
  const auto threads = size_t{l.block.x} * l.block.y * l.block.z;
  const bool grid = l.grid.x > 0 && l.grid.x <= 2147483647U && l.grid.y > 0 && l.grid.y <= 65535 &&
                    l.grid.z > 0 && l.grid.z <= 65535;
  if (!grid || threads == 0 || threads > 1024 || l.block.z > 64) {
    return refuse(cudaErrorInvalidConfiguration, "grid or block of " + kernel->name);
  }
  if (l.shared_bytes > 49152 && l.shared_bytes > kernel->shared_bytes) {
    return refuse(cudaErrorInvalidValue, "shared memory of " + kernel->name);
  }
  write("work " + name_of(l.stream) + " kernel " + kernel->name);
  return cudaSuccess;
}

}  // namespace

extern "C" {

void** __cudaRegisterFatBinary(void* binary) {
  return new void*(binary);
}

void __cudaRegisterFatBinaryEnd(void**) {}

void __cudaUnregisterFatBinary(void**) {}

void __cudaRegisterFunction(void**, const char* function, char*, const char* name, int, uint3*, uint3*, dim3*,
                            dim3*, int*) {
  const std::lock_guard lock(kernels().mutex);
  kernels().by_host_function[function] = new Kernel{name};
}

void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes, struct CUstream_st* stream) {
  pending.push_back({grid, block, shared_bytes, stream});
  return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared_bytes, void* stream) {
  const Launch l = pending.back();
  pending.pop_back();
  *grid = l.grid, *block = l.block, *shared_bytes = l.shared_bytes;
  *static_cast<cudaStream_t*>(stream) = l.stream;
  return cudaSuccess;
}

cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = reinterpret_cast<cudaKernel_t>(find(function));
  return *kernel == nullptr ? refuse(cudaErrorInvalidDeviceFunction, "a function that is no kernel")
                            : cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void**, size_t shared_bytes,
                               cudaStream_t stream) {
  return launch(reinterpret_cast<const Kernel*>(kernel), {grid, block, shared_bytes, stream});
}

cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void**, size_t shared_bytes,
                             cudaStream_t stream) {
  return launch(find(function), {grid, block, shared_bytes, stream});
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* c, const void* function, void**) {
  return launch(find(function), {c->gridDim, c->blockDim, c->dynamicSmemBytes, c->stream});
}

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  Kernel* kernel = find(function);
  if (kernel == nullptr || attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
  cudaDeviceProp p;
  cudaGetDeviceProperties(&p, 0);
  if (static_cast<size_t>(value) > p.sharedMemPerBlockOptin) {
    return refuse(cudaErrorInvalidValue, "shared memory of " + kernel->name);
  }
  kernel->shared_bytes = static_cast<size_t>(value);
  return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* a, const void*) {
  *a = {};
  a->maxThreadsPerBlock = 1024;
  a->numRegs = 32;
  a->binaryVersion = a->ptxVersion = capability();
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int threads,
                                                                   size_t, unsigned) {
  *blocks = 2048 / threads;
  return cudaSuccess;
}

}  // extern "C"

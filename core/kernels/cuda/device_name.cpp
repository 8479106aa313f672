#include "core/kernels/device_name.h"

#include <cuda_runtime_api.h>

#include "core/base/error.h"

namespace pptrain::kernels {

int gpu_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;  // an error is: no driver, or no GPU
}

std::string device_name(c10::Device device) {
  cudaDeviceProp properties{};
  const cudaError_t status = cudaGetDeviceProperties(&properties, device.index());
  if (status != cudaSuccess)
    throw Error(std::string("cudaGetDeviceProperties: ") + cudaGetErrorString(status));
  return properties.name;
}

}  // namespace pptrain::kernels

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "core/kernels/cuda/device.cuh"
#include "core/kernels/cuda/host.h"
#include "core/kernels/kernels.h"
#include "core/kernels/normal_value.h"

namespace pptrain::kernels::cuda {
namespace {

constexpr unsigned normal_value_threads = 256;

// One block of four values a thread.
__global__ void normal_values_kernel(float* out, int64_t size, uint64_t key, int64_t first, double std) {
  const int64_t block = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (block < normal_value::blocks_of(first, size)) {
    normal_value::write_block(out, size, key, first, std, block);
  }
}

}  // namespace

void normal_values(Tensor& out, uint64_t key, int64_t first, double std) {
  const char* const name = "normal_values";
  const int64_t size = out.numel();
  if (size == 0) {
    return;
  }
  const DeviceGuard guard(out.device());
  const int64_t blocks = normal_value::blocks_of(first, size);
  launch(name, normal_values_kernel, grid_size(ceil_div(blocks, normal_value_threads), name),
         normal_value_threads, 0, output<float>(out), size, key, first, std);
}

void add_normal_kernels() {
  kernels::normal_values.implement(BackEnd::cuda, normal_values);
}

}  // namespace pptrain::kernels::cuda

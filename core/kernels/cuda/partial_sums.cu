#include "core/kernels/cuda/partial_sums.h"

#include <ATen/ops/empty.h>

#include "core/kernels/cuda/device.cuh"
#include "core/kernels/cuda/host.h"

namespace pptrain::kernels::cuda {
namespace {

constexpr int columns_per_block = warp_size;
constexpr int groups_per_block = 16;  // each sums every 16th row

__global__ void add_partial_sums_kernel(const float* partials, int64_t count, int64_t dim, float* out) {
  __shared__ float sums[groups_per_block][columns_per_block];
  const int lane = static_cast<int>(threadIdx.x) % columns_per_block;
  const int group = static_cast<int>(threadIdx.x) / columns_per_block;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * columns_per_block + lane;
  float sum = 0.0F;
  if (column < dim) {
    for (int64_t row = group; row < count; row += groups_per_block) {
      sum += partials[row * dim + column];
    }
  }
  sums[group][lane] = sum;
  __syncthreads();
  if (group == 0 && column < dim) {
    float total = 0.0F;
    for (int g = 0; g < groups_per_block; ++g) {
      total += sums[g][lane];
    }
    out[column] += total;
  }
}

}  // namespace

void add_partial_sums(const Tensor& partials, const Tensor& out) {
  const int64_t count = partials.size(0);
  const int64_t dim = partials.size(1);
  if (count == 0 || dim == 0) {
    return;
  }
  launch("add_partial_sums", add_partial_sums_kernel,
         grid_size(ceil_div(dim, columns_per_block), "add_partial_sums"),
         columns_per_block * groups_per_block, 0, input<float>(partials), count, dim, output<float>(out));
}

Tensor empty_partial_sums(const Tensor& like, int64_t count, int64_t dim) {
  return at::empty({count, dim}, like.options().dtype(at::kFloat));
}

}  // namespace pptrain::kernels::cuda

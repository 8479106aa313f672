#include "core/kernels/cuda/partial_sums.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>

#include "core/kernels/cuda/device.cuh"
#include "core/kernels/cuda/host.h"

namespace pptrain::kernels::cuda {
namespace {

constexpr int columns_per_block = warp_size;
constexpr int groups_per_block = 32;  // each sums every 32nd row
constexpr int most_tables = 2;        // of one launch

struct Table {
  const float* partials;  // [count, dim]
  int64_t count;
  int64_t dim;
  float* out;
};

struct Tables {
  Table tables[most_tables];
};

// Few columns mean few blocks: what counts is that a thread asks for many rows at once.
__global__ void add_partial_sums_kernel(const __grid_constant__ Tables tables) {
  __shared__ float sums[groups_per_block][columns_per_block];
  const Table& table = tables.tables[blockIdx.y];
  const int lane = static_cast<int>(threadIdx.x) % columns_per_block;
  const int group = static_cast<int>(threadIdx.x) / columns_per_block;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * columns_per_block + lane;
  float sum = 0.0F;
  if (column < table.dim) {
#pragma unroll 8
    for (int64_t row = group; row < table.count; row += groups_per_block) {
      sum += table.partials[row * table.dim + column];
    }
  }
  sums[group][lane] = sum;
  __syncthreads();
  if (group == 0 && column < table.dim) {
    float total = 0.0F;
    for (int g = 0; g < groups_per_block; ++g) {
      total += sums[g][lane];
    }
    table.out[column] += total;
  }
}

}  // namespace

void add_partial_sums(std::span<const PartialSums> sums) {
  const char* const name = "add_partial_sums";
  Tables tables{};
  unsigned count = 0;
  int64_t widest = 0;
  for (const auto& [partials, out] : sums) {
    if (partials.numel() == 0) {
      continue;
    }
    require(count < most_tables, name, "two tables at once");
    tables.tables[count++] = {input<float>(partials), partials.size(0), partials.size(1), output<float>(out)};
    widest = std::max(widest, partials.size(1));
  }
  if (count == 0) {
    return;
  }
  launch(name, add_partial_sums_kernel, dim3(grid_size(ceil_div(widest, columns_per_block), name), count),
         columns_per_block * groups_per_block, 0, tables);
}

void add_partial_sums(const Tensor& partials, const Tensor& out) {
  add_partial_sums(std::array{PartialSums{partials, out}});
}

Tensor empty_partial_sums(const Tensor& like, int64_t count, int64_t dim) {
  return at::empty({count, dim}, like.options().dtype(at::kFloat));
}

}  // namespace pptrain::kernels::cuda

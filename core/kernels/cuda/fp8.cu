#include <ATen/core/Tensor.h>
#include <ATen/ops/_scaled_mm.h>

#include "core/kernels/cuda/device.cuh"
#include "core/kernels/cuda/host.h"
#include "core/kernels/e4m3.h"
#include "core/kernels/fp8_kernels.h"

namespace pptrain::kernels::cuda {
namespace {

constexpr int64_t most_row_threads = 256;
constexpr unsigned tile = 32;      // rows and columns of x that a block transposes at a time
constexpr unsigned tile_rows = 8;  // rows of threads of such a block

// The bits of |x| as float32: they are ordered as the magnitudes are, and NaN's are the largest.
__device__ inline uint32_t magnitude(at::BFloat16 x) {
  return static_cast<uint32_t>(x.x & 0x7FFFU) << 16;
}

// The largest value of a block's threads, in all of them. shared: of one value a warp.
__device__ inline uint32_t largest_of_block(uint32_t value, uint32_t* shared) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const uint32_t other = __shfl_xor_sync(0xffffffffU, value, step);
    value = other > value ? other : value;
  }
  if (threadIdx.x % 32 == 0) {
    shared[threadIdx.x / 32] = value;
  }
  __syncthreads();
  uint32_t largest = 0;
  for (unsigned warp = 0; warp < blockDim.x / 32; ++warp) {
    largest = shared[warp] > largest ? shared[warp] : largest;
  }
  return largest;
}

// A block takes a row.
__global__ void quantize_rows_kernel(const at::BFloat16* x, int64_t stride, int64_t cols, uint8_t* values,
                                     float* scales) {
  __shared__ uint32_t shared[most_row_threads / 32];
  const at::BFloat16* const row = x + static_cast<int64_t>(blockIdx.x) * stride;
  uint32_t largest = 0;
  for (int64_t i = threadIdx.x; i < cols; i += blockDim.x) {
    const uint32_t own = magnitude(row[i]);
    largest = own > largest ? own : largest;
  }
  const float scale = e4m3::scale_of(largest_of_block(largest, shared));
  const float factor = e4m3::inverse(scale);
  for (int64_t i = threadIdx.x; i < cols; i += blockDim.x) {
    values[static_cast<int64_t>(blockIdx.x) * cols + i] = e4m3::rounded(static_cast<float>(row[i]) * factor);
  }
  if (threadIdx.x == 0) {
    scales[blockIdx.x] = scale;
  }
}

// A block takes `tile` columns. Thread (i, j) looks for the largest magnitude of column i in the rows j, j +
// tile_rows, ... Then the block transposes tiles through shared memory: both sides access memory side by
// side.
__global__ void quantize_columns_kernel(const at::BFloat16* x, int64_t rows, int64_t cols, uint8_t* values,
                                        float* scales) {
  __shared__ uint32_t largest[tile_rows][tile];
  __shared__ uint8_t codes[tile][tile + 4];
  const unsigned lane = threadIdx.x % tile;
  const unsigned line = threadIdx.x / tile;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * tile;
  const int64_t col = first + lane;
  uint32_t own = 0;
  for (int64_t row = line; row < rows && col < cols; row += tile_rows) {
    const uint32_t value = magnitude(x[row * cols + col]);
    own = value > own ? value : own;
  }
  largest[line][lane] = own;
  __syncthreads();
  for (unsigned i = 0; i < tile_rows; ++i) {
    own = largest[i][lane] > own ? largest[i][lane] : own;
  }
  const float scale = e4m3::scale_of(own);
  const float factor = e4m3::inverse(scale);
  if (line == 0 && col < cols) {
    scales[col] = scale;
  }
  for (int64_t begin = 0; begin < rows; begin += tile) {
    for (unsigned i = line; i < tile; i += tile_rows) {
      if (begin + i < rows && col < cols) {
        codes[lane][i] = e4m3::rounded(static_cast<float>(x[(begin + i) * cols + col]) * factor);
      }
    }
    __syncthreads();
    for (unsigned i = line; i < tile; i += tile_rows) {
      if (first + i < cols && begin + lane < rows) {
        values[(first + i) * rows + begin + lane] = codes[i][lane];
      }
    }
    __syncthreads();
  }
}

}  // namespace

void quantize_rows(const Tensor& x, Tensor& values, Tensor& scales) {
  if (x.numel() == 0) {
    return;
  }
  const DeviceGuard guard(x.device());
  launch("quantize_rows", quantize_rows_kernel, grid_size(x.size(0), "quantize_rows"),
         threads_for(x.size(1), most_row_threads), 0, input<at::BFloat16>(x), x.stride(0), x.size(1),
         output<uint8_t>(values), output<float>(scales));
}

void quantize_columns(const Tensor& x, Tensor& values, Tensor& scales) {
  if (x.numel() == 0) {
    return;
  }
  const DeviceGuard guard(x.device());
  launch("quantize_columns", quantize_columns_kernel,
         grid_size(ceil_div(x.size(1), tile), "quantize_columns"), tile * tile_rows, 0,
         input<at::BFloat16>(x), x.size(0), x.size(1), output<uint8_t>(values), output<float>(scales));
}

// LibTorch takes cuBLASLt on Hopper and CUTLASS on other GPUs, both with row-major times column-major
// operands. Without "fast" sums, which lose bits between the tensor cores' steps.
void fp8_linear(const Tensor& a, const Tensor& a_scales, const Tensor& b, const Tensor& b_scales,
                const std::optional<Tensor>& bias, Tensor& out) {
  if (a.size(0) == 0) {
    return;
  }
  const DeviceGuard guard(a.device());
  at::_scaled_mm_out(out, a, b.t(), a_scales.unsqueeze(1), b_scales.unsqueeze(0), bias, {}, at::kBFloat16,
                     /*use_fast_accum=*/false);
}

void add_fp8_kernels() {
  kernels::quantize_rows.implement(BackEnd::cuda, quantize_rows);
  kernels::quantize_columns.implement(BackEnd::cuda, quantize_columns);
  kernels::fp8_linear.implement(BackEnd::cuda, fp8_linear);
}

}  // namespace pptrain::kernels::cuda

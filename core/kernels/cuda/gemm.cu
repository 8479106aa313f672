#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>

#include <optional>

#include "core/kernels/cuda/device.cuh"
#include "core/kernels/cuda/gemm.h"
#include "core/kernels/cuda/host.h"
#include "core/kernels/cuda/partial_sums.h"
#include "core/kernels/kernels.h"

namespace pptrain::kernels::cuda {
namespace {

constexpr int64_t bias_threads = 128;

// First stage: block (x, y) sums the columns of its packs over strip x of the rows, in row order.
template <typename T, bool kVector>
__global__ void column_sums_kernel(const T* dy, int64_t rows, int64_t rows_per_block, int64_t dim,
                                   float* partials) {
  constexpr int N = pack_width<T>;
  const int64_t i = (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * N;
  if (i >= dim) {
    return;
  }
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * rows_per_block;
  const int64_t end = begin + rows_per_block < rows ? begin + rows_per_block : rows;
  float sum[N] = {};
#pragma unroll 4
  for (int64_t row = begin; row < end; ++row) {
    float g[N];
    load<kVector>(dy + row * dim + i, dim - i, g);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      sum[j] += g[j];
    }
  }
  store<kVector>(partials + static_cast<int64_t>(blockIdx.x) * dim + i, dim - i, sum);
}

}  // namespace

void matmul(const Tensor& a, const Tensor& b, Tensor& out) {
  at::mm_out(out, a, b);
}

void linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias, Tensor& out) {
  if (bias) {
    at::addmm_out(out, *bias, x, weight.t());
  } else {
    at::mm_out(out, x, weight.t());
  }
}

// Without rows, addmm would rewrite the whole gradient.
void accumulate_weight_gradient(const Tensor& dy, const Tensor& x, Tensor& weight_grad) {
  if (dy.size(0) > 0) {
    at::addmm_out(weight_grad, weight_grad, dy.t(), x, at::kFloat);
  }
}

void weight_gradient(const Tensor& dy, const Tensor& x, Tensor& weight_grad) {
  at::mm_out(weight_grad, dy.t(), x, at::kFloat);
}

void accumulate_bias_gradient(const Tensor& dy, Tensor& bias_grad) {
  const char* const name = "accumulate_bias_gradient";
  const int64_t rows = dy.size(0);
  const int64_t dim = dy.size(1);
  if (dy.numel() == 0) {
    return;
  }
  const DeviceGuard guard(dy.device());
  const Strips strips = split_rows(rows, 16);
  const Tensor partials = empty_partial_sums(dy, strips.count, dim);
  with_type(dy.scalar_type(), name, [&](auto tag) {
    using T = decltype(tag);
    constexpr int N = pack_width<T>;
    const int64_t packs = ceil_div(dim, N);
    const unsigned threads = threads_for(packs, bias_threads);
    require(ceil_div(packs, threads) <= 65535, name, "at most 65535 * 128 packs of 16 bytes in a row");
    const dim3 grid(grid_size(strips.count, name), static_cast<unsigned>(ceil_div(packs, threads)));
    with_bool(dim % N == 0 && are_aligned(input<T>(dy), input<float>(partials)), [&](auto is_vector) {
      launch(name, column_sums_kernel<T, decltype(is_vector)::value>, grid, threads, 0, input<T>(dy), rows,
             strips.rows, dim, output<float>(partials));
    });
  });
  add_partial_sums(partials, bias_grad);
}

// Partial sums of a GEMM may then not be rounded to bfloat16, which LibTorch allows cuBLAS by default: also
// for the GEMMs of Muon, which call ATen by themselves.
void sum_in_float32() {
  at::globalContext().setAllowBF16ReductionCuBLAS(/*allow_reduced_precision=*/false, /*allow_splitk=*/true);
}

void add_gemm_kernels() {
  sum_in_float32();
  kernels::matmul.implement(BackEnd::cuda, matmul);
  kernels::linear.implement(BackEnd::cuda, linear);
  kernels::accumulate_weight_gradient.implement(BackEnd::cuda, accumulate_weight_gradient);
  kernels::weight_gradient.implement(BackEnd::cuda, weight_gradient);
  kernels::accumulate_bias_gradient.implement(BackEnd::cuda, accumulate_bias_gradient);
}

}  // namespace pptrain::kernels::cuda

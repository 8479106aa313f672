#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <optional>

#include "core/base/error.h"
#include "core/kernels/cuda/device.cuh"
#include "core/kernels/cuda/host.h"
#include "core/kernels/cuda/partial_sums.h"
#include "core/kernels/cuda/rows.cuh"
#include "core/kernels/expert_kernels.h"
#include "core/kernels/kernels.h"

namespace pptrain::kernels::cuda {

void gather_rows(const Tensor& x, const Tensor& order, int64_t each, Tensor& out);  // experts.cu

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
  // Partial sums are aligned, as all new tensors are.
  const auto run = [&]<typename T, bool kVector>(T, std::bool_constant<kVector>) {
    const Strips strips = split_rows(rows, 16);
    const Tensor partials = empty_partial_sums(dy, strips.count, dim);
    const int64_t packs = ceil_div(dim, pack_width<T>);
    const unsigned threads = threads_for(packs, bias_threads);
    launch(name, column_sums_kernel<T, kVector>, grid_of_packs(strips.count, packs, threads, name), threads,
           0, input<T>(dy), rows, strips.rows, dim, output<float>(partials));
    add_partial_sums(partials, bias_grad);
  };
  with_packs(name, dy, run, dy);
}

namespace {

// Calls body(expert, first row, rows) for each expert; it may have no rows. The host must know the sizes of
// the GEMMs: it waits for the device, unless `ends` lies on the host.
template <typename Body>
void for_each_group(const Tensor& ends, int64_t rows, const Body& body) {
  const Tensor host_ends = ends.cpu();
  const int* const end = input<int>(host_ends);
  int64_t first = 0;
  for (int64_t e = 0; e < host_ends.size(0); ++e) {
    if (end[e] < first || end[e] > rows) {
      throw Error("grouped product: the experts' rows lie outside of the tensor");
    }
    body(e, first, end[e] - first);
    first = end[e];
  }
}

// The rows of an operand, side by side.
Tensor rows_of(const Tensor& x, const std::optional<Tensor>& order, int64_t each) {
  if (!order) {
    return x;
  }
  Tensor gathered = at::empty({order->size(0), x.size(1)}, x.options());
  gather_rows(x, *order, each, gathered);
  return gathered;
}

}  // namespace

void grouped_linear(const Tensor& x, const std::optional<Tensor>& order, int64_t each, const Tensor& ends,
                    const Tensor& weight, Tensor& out) {
  const DeviceGuard guard(x.device());
  const Tensor from = rows_of(x, order, each);
  for_each_group(ends, out.size(0), [&](int64_t e, int64_t first, int64_t rows) {
    Tensor part = out.narrow(0, first, rows);
    linear(from.narrow(0, first, rows), weight[e], std::nullopt, part);
  });
}

void grouped_matmul(const Tensor& dy, const std::optional<Tensor>& order, int64_t each, const Tensor& ends,
                    const Tensor& weight, Tensor& dx) {
  const DeviceGuard guard(dy.device());
  const Tensor from = rows_of(dy, order, each);
  for_each_group(ends, dx.size(0), [&](int64_t e, int64_t first, int64_t rows) {
    Tensor part = dx.narrow(0, first, rows);
    matmul(from.narrow(0, first, rows), weight[e], part);
  });
}

namespace {

using WeightGradient = void (*)(const Tensor& dy, const Tensor& x, Tensor& weight_grad);

void for_each_expert(WeightGradient weight_gradient, const Tensor& dy, const std::optional<Tensor>& dy_order,
                     const Tensor& x, const std::optional<Tensor>& x_order, int64_t each, const Tensor& ends,
                     Tensor& weight_grad) {
  const DeviceGuard guard(dy.device());
  const Tensor left = rows_of(dy, dy_order, each);
  const Tensor right = rows_of(x, x_order, each);
  for_each_group(ends, left.size(0), [&](int64_t e, int64_t first, int64_t rows) {
    Tensor part = weight_grad[e];
    weight_gradient(left.narrow(0, first, rows), right.narrow(0, first, rows), part);
  });
}

}  // namespace

void accumulate_grouped_weight_gradient(const Tensor& dy, const std::optional<Tensor>& dy_order,
                                        const Tensor& x, const std::optional<Tensor>& x_order, int64_t each,
                                        const Tensor& ends, Tensor& weight_grad) {
  for_each_expert(accumulate_weight_gradient, dy, dy_order, x, x_order, each, ends, weight_grad);
}

void grouped_weight_gradient(const Tensor& dy, const std::optional<Tensor>& dy_order, const Tensor& x,
                             const std::optional<Tensor>& x_order, int64_t each, const Tensor& ends,
                             Tensor& weight_grad) {
  for_each_expert(weight_gradient, dy, dy_order, x, x_order, each, ends, weight_grad);
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
  kernels::grouped_linear.implement(BackEnd::cuda, grouped_linear);
  kernels::grouped_matmul.implement(BackEnd::cuda, grouped_matmul);
  kernels::accumulate_grouped_weight_gradient.implement(BackEnd::cuda, accumulate_grouped_weight_gradient);
  kernels::grouped_weight_gradient.implement(BackEnd::cuda, grouped_weight_gradient);
}

}  // namespace pptrain::kernels::cuda

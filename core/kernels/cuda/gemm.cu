#include <ATen/core/Tensor.h>

#include <optional>

#include "core/kernels/cuda/blas.h"
#include "core/kernels/cuda/device.cuh"
#include "core/kernels/cuda/gemm.h"
#include "core/kernels/cuda/host.h"
#include "core/kernels/cuda/partial_sums.h"
#include "core/kernels/kernels.h"
#include "core/kernels/products.h"

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

ProductOperands operands_of(const Tensor& a, const Tensor& b, const Tensor& out) {
  return {.a = a.const_data_ptr(), .b = b.const_data_ptr(), .bias = nullptr, .out = out.mutable_data_ptr()};
}

}  // namespace

void matmul(const Tensor& a, const Tensor& b, Tensor& out) {
  if (out.numel() == 0) {
    return;
  }
  const DeviceGuard guard(a.device());
  multiply(product_of_matmul(a, b), operands_of(a, b, out), Existing::overwritten);
}

// A bias that the product does not take is put where the sums are then added to.
void linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias, Tensor& out) {
  if (out.numel() == 0) {
    return;
  }
  const DeviceGuard guard(x.device());
  Product product = product_of_linear(x, weight, bias.has_value());
  ProductOperands operands = operands_of(x, weight, out);
  if (bias) {
    operands.bias = bias->const_data_ptr();
    if (!takes_bias(product, operands)) {
      out.copy_(bias->expand_as(out));
      product.bias = false;
      operands.bias = nullptr;
      return multiply(product, operands, Existing::added);
    }
  }
  multiply(product, operands, Existing::overwritten);
}

void add_outer_products(const Tensor& dy, const Tensor& x, Existing existing, Tensor& weight_grad) {
  const DeviceGuard guard(dy.device());
  multiply(product_of_weight_gradient(dy, x), operands_of(dy, x, weight_grad), existing);
}

void accumulate_weight_gradient(const Tensor& dy, const Tensor& x, Tensor& weight_grad) {
  if (dy.size(0) > 0) {
    add_outer_products(dy, x, Existing::added, weight_grad);
  }
}

void weight_gradient(const Tensor& dy, const Tensor& x, Tensor& weight_grad) {
  if (dy.size(0) == 0) {
    weight_grad.zero_();
    return;
  }
  add_outer_products(dy, x, Existing::overwritten, weight_grad);
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

void add_gemm_kernels() {
  kernels::matmul.implement(BackEnd::cuda, matmul);
  kernels::linear.implement(BackEnd::cuda, linear);
  kernels::accumulate_weight_gradient.implement(BackEnd::cuda, accumulate_weight_gradient);
  kernels::weight_gradient.implement(BackEnd::cuda, weight_gradient);
  kernels::accumulate_bias_gradient.implement(BackEnd::cuda, accumulate_bias_gradient);
}

}  // namespace pptrain::kernels::cuda

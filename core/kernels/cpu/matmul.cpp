#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>

#include <limits>
#include <memory>
#include <vector>

#include "core/kernels/cpu/gemm.h"
#include "core/kernels/cpu/loops.h"
#include "core/kernels/cpu/matmul.h"
#include "core/kernels/cpu/parallel.h"
#include "core/kernels/cpu/typed.h"
#include "core/kernels/kernels.h"

namespace pptrain::kernels::cpu {
namespace {

bool fits_int(int64_t n) {
  return n <= std::numeric_limits<int>::max();
}

// out = a b where MKL is the faster library for the shape (measured: a third faster than oneDNN at 256 x
// 32000 x 512); otherwise returns false and does nothing. These are products with a long inner dimension, in
// bfloat16: the input gradients of the head and of wide projections. The choice depends on type, shapes and
// the processor's maker alone.
bool long_matmul(const Tensor& a, const Tensor& b, Tensor& result) {
  const int64_t rows = a.size(0);
  const int64_t inner = a.size(1);
  const int64_t cols = b.size(1);
  const bool is_long = inner >= 2048 && inner >= 4 * cols && rows >= 32;
  if (a.scalar_type() != at::kBFloat16 || !is_long || !has_gemm() || has_own_bf16_gemm() || !fits_int(rows) ||
      !fits_int(inner)) {
    return false;
  }
  const auto sums = std::make_unique_for_overwrite<float[]>(static_cast<size_t>(rows * cols));
  gemm<uint16_t>(Op::none, Op::none, {.m = rows, .n = cols, .k = inner}, {in<uint16_t>(a), inner},
                 {in<uint16_t>(b), cols}, 0.0F, {sums.get(), cols});
  parallel_for(rows, row_grain(cols), [&](int64_t first, int64_t last) {
    loops().bf16.divide_rows(sums.get() + first * cols, nullptr, out<uint16_t>(result) + first * cols, cols,
                             last - first, cols);
  });
  return true;
}

// At so few rows MKL and oneDNN reach a fraction of what memory gives: they make 2 to 5 GB/s of the weight's
// bytes where this makes (measurements in the README).
constexpr int64_t few_rows = 16;

// Dot products along the weight's rows. A row's results do not depend on the number of rows.
void linear_of_few_rows(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
                        Tensor& result) {
  const int64_t inner = x.size(1);
  by_type(x, [&]<class T>(T) {
    const LinearRowsArgs<T> args{.x = in<T>(x),
                                 .x_stride = x.stride(0),
                                 .weight = in<T>(weight),
                                 .bias = in<T>(bias),
                                 .out = out<T>(result),
                                 .out_stride = result.stride(0),
                                 .rows = x.size(0),
                                 .in = inner};
    parallel_for(weight.size(0), row_grain(inner),
                 [&](int64_t first, int64_t last) { typed<T>(loops()).linear_rows(args, first, last); });
  });
}

}  // namespace

void matmul(const Tensor& a, const Tensor& b, Tensor& result) {
  if (!long_matmul(a, b, result)) at::mm_out(result, a, b);
}

void linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias, Tensor& result) {
  if (x.size(0) <= few_rows) {
    linear_of_few_rows(x, weight, bias, result);
  } else if (bias) {
    at::addmm_out(result, *bias, x, weight.t());
  } else {
    at::mm_out(result, x, weight.t());
  }
}

namespace {

// weight_grad = dy^T x + beta weight_grad; with beta = 0 what it held is not read.
void add_outer_products(const Tensor& dy, const Tensor& x, float beta, Tensor& weight_grad) {
  const int64_t rows = dy.size(0);
  const int64_t outputs = dy.size(1);
  const int64_t inputs = x.size(1);
  if (!has_gemm() || !fits_int(rows) || !fits_int(outputs) || !fits_int(inputs)) {
    weight_grad.addmm_(dy.to(at::kFloat).t(), x.to(at::kFloat), beta);
    return;
  }
  by_type(dy, [&]<class T>(T) {
    gemm<T>(Op::transpose, Op::none, {.m = outputs, .n = inputs, .k = rows}, {in<T>(dy), outputs},
            {in<T>(x), inputs}, beta, {out<float>(weight_grad), inputs});
  });
}

}  // namespace

void accumulate_weight_gradient(const Tensor& dy, const Tensor& x, Tensor& weight_grad) {
  add_outer_products(dy, x, 1, weight_grad);
}

void weight_gradient(const Tensor& dy, const Tensor& x, Tensor& weight_grad) {
  if (dy.size(0) == 0) {
    weight_grad.zero_();
    return;
  }
  add_outer_products(dy, x, 0, weight_grad);
}

void accumulate_bias_gradient(const Tensor& dy, Tensor& bias_grad) {
  const int64_t rows = dy.size(0);
  const int64_t cols = dy.size(1);
  std::vector<float> sums(static_cast<size_t>(cols));
  by_type(dy, [&]<class T>(T) {
    parallel_for(cols, row_grain(rows), [&](int64_t first, int64_t last) {
      typed<T>(loops()).column_sums(in<T>(dy), sums.data(), rows, cols, first, last);
    });
  });
  float* grad = out<float>(bias_grad);
  for (int64_t i = 0; i < cols; ++i) {
    grad[i] += sums[static_cast<size_t>(i)];
  }
}

void add_matmul_kernels() {
  kernels::matmul.implement(BackEnd::cpu, matmul);
  kernels::linear.implement(BackEnd::cpu, linear);
  kernels::accumulate_weight_gradient.implement(BackEnd::cpu, accumulate_weight_gradient);
  kernels::weight_gradient.implement(BackEnd::cpu, weight_gradient);
  kernels::accumulate_bias_gradient.implement(BackEnd::cpu, accumulate_bias_gradient);
}

}  // namespace pptrain::kernels::cpu

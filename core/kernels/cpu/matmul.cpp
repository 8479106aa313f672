#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>

#include <memory>
#include <type_traits>
#include <vector>

#include "core/kernels/cpu/gemm.h"
#include "core/kernels/cpu/loops.h"
#include "core/kernels/cpu/matmul.h"
#include "core/kernels/cpu/parallel.h"
#include "core/kernels/cpu/typed.h"
#include "core/kernels/kernels.h"

namespace pptrain::kernels::cpu {
namespace {

// Whether no library's product of this type is faster than our own.
bool is_own(const Tensor& x) {
#if defined(__x86_64__)
  return x.scalar_type() == at::kBFloat16 ? !multiplies_bfloat16() : has_own_gemm<float>();
#else
  return false;
#endif
}

// result = a op_b(b) by our own product, with finish(range, sums) before it is rounded. Rows of a may lie
// apart.
template <class T, class Finish>
void own_product(const Tensor& a, Op op_b, const Tensor& b, Tensor& result, const Finish& finish) {
  const int64_t columns = result.size(1);
  packed_rounded_gemm<T>(typed<T>(loops()), Op::none, op_b, {.m = a.size(0), .n = columns, .k = a.size(1)},
                         {in<T>(a), a.stride(0)}, {in<T>(b), b.size(1)}, {out<T>(result), columns}, finish);
}

void own_product(const Tensor& a, Op op_b, const Tensor& b, Tensor& result) {
  by_type(a, [&]<class T>(T) {
    if constexpr (std::is_same_v<T, float>) {
      gemm<float>(Op::none, op_b, {.m = a.size(0), .n = result.size(1), .k = a.size(1)},
                  {in<float>(a), a.stride(0)}, {in<float>(b), b.size(1)}, Result::written,
                  {out<float>(result), result.size(1)});
    } else {
      own_product<T>(a, op_b, b, result, [](const Range&, float*) {});
    }
  });
}

// sums [rows, columns] = alpha sums + beta x, whose rows are x_stride apart.
template <class T>
void add_rows(const T* x, int64_t x_stride, float beta, float alpha, const Range& range, float* sums) {
  x += range.m * x_stride + range.n;
  for (int64_t i = 0; i < range.rows; ++i, x += x_stride, sums += range.columns) {
    for (int64_t j = 0; j < range.columns; ++j) sums[j] = alpha * sums[j] + beta * to_float(x[j]);
  }
}

void own_product_with_bias(const Tensor& x, const Tensor& weight, const Tensor& bias, Tensor& result) {
  by_type(x, [&]<class T>(T) {
    own_product<T>(x, Op::transpose, weight, result,
                   [&](const Range& range, float* sums) { add_rows(in<T>(bias), 0, 1, 1, range, sums); });
  });
}

// result = a b where MKL is the faster library for the shape (measured: a third faster than oneDNN at 256 x
// 32000 x 512); otherwise returns false and does nothing. These are products with a long inner dimension, in
// bfloat16: the input gradients of the head and of wide projections. The choice depends on type, shapes and
// the processor's maker alone.
bool long_matmul(const Tensor& a, const Tensor& b, Tensor& result) {
  const int64_t rows = a.size(0);
  const int64_t inner = a.size(1);
  const int64_t cols = b.size(1);
  const bool is_long = inner >= 2048 && inner >= 4 * cols && rows >= 32;
  if (a.scalar_type() != at::kBFloat16 || !is_long || !has_mkl_bfloat16()) return false;
  const auto sums = std::make_unique_for_overwrite<float[]>(static_cast<size_t>(rows * cols));
  gemm<uint16_t>(Op::none, Op::none, {.m = rows, .n = cols, .k = inner}, {in<uint16_t>(a), inner},
                 {in<uint16_t>(b), cols}, Result::written, {sums.get(), cols});
  parallel_for(rows, row_grain(cols), [&](int64_t first, int64_t last) {
    loops().bf16.divide_rows(sums.get() + first * cols, nullptr, out<uint16_t>(result) + first * cols, cols,
                             last - first, cols);
  });
  return true;
}

// At so few rows MKL and oneDNN reach a fraction of what memory gives: 2 to 5 GB/s of the weight's bytes.
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
  if (is_own(a) && a.size(1) > 0) {
    own_product(a, Op::none, b, result);
  } else if (!long_matmul(a, b, result)) {
    at::mm_out(result, a, b);
  }
}

void linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias, Tensor& result) {
  if (x.size(0) <= few_rows) {
    linear_of_few_rows(x, weight, bias, result);
  } else if (is_own(x) && x.size(1) > 0) {
    bias ? own_product_with_bias(x, weight, *bias, result) : own_product(x, Op::transpose, weight, result);
  } else if (bias) {
    at::addmm_out(result, *bias, x, weight.t());
  } else {
    at::mm_out(result, x, weight.t());
  }
}

void add_matmul(const Tensor& c, double beta, const Tensor& a, const Tensor& b, double alpha,
                Tensor& result) {
  if (!is_own(a) || a.size(1) == 0) {
    at::addmm_out(result, c, a, b, beta, alpha);
    return;
  }
  by_type(a, [&]<class T>(T) {
    own_product<T>(a, Op::none, b, result, [&](const Range& range, float* sums) {
      add_rows(in<T>(c), c.size(1), static_cast<float>(beta), static_cast<float>(alpha), range, sums);
    });
  });
}

namespace {

// weight_grad (+)= dy^T x
void outer_products(const Tensor& dy, const Tensor& x, Result result, Tensor& weight_grad) {
  const int64_t outputs = dy.size(1), inputs = x.size(1);
  by_type(dy, [&]<class T>(T) {
    gemm<T>(Op::transpose, Op::none, {.m = outputs, .n = inputs, .k = dy.size(0)}, {in<T>(dy), outputs},
            {in<T>(x), inputs}, result, {out<float>(weight_grad), inputs});
  });
}

}  // namespace

void accumulate_weight_gradient(const Tensor& dy, const Tensor& x, Tensor& weight_grad) {
  if (dy.size(0) > 0) outer_products(dy, x, Result::added, weight_grad);
}

void weight_gradient(const Tensor& dy, const Tensor& x, Tensor& weight_grad) {
  if (dy.size(0) == 0) {
    weight_grad.zero_();
    return;
  }
  outer_products(dy, x, Result::written, weight_grad);
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

#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <spdlog/fmt/fmt.h>

#include <memory>
#include <type_traits>
#include <vector>

#include "core/base/error.h"
#include "core/kernels/cpu/gemm.h"
#include "core/kernels/cpu/loops.h"
#include "core/kernels/cpu/matmul.h"
#include "core/kernels/cpu/parallel.h"
#include "core/kernels/cpu/typed.h"
#include "core/kernels/expert_kernels.h"
#include "core/kernels/kernels.h"

namespace pptrain::kernels::cpu {
namespace {

// Whether no library's GEMM of this type is faster than our own.
bool is_own(const Tensor& x) {
#if defined(__x86_64__)
  return x.scalar_type() == at::kBFloat16 ? !multiplies_bfloat16() : has_own_gemm<float>();
#else
  return false;
#endif
}

// result = a op_b(b) by our own GEMM, with finish(range, sums) before it is rounded. Rows of a may lie apart.
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

// result = a b if MKL is the faster library for the shape (measured: a third faster than oneDNN at 256 x
// 32000 x 512); otherwise returns false and does nothing. MKL takes GEMMs with a long inner dimension, in
// bfloat16: the input gradients of the head and of wide projections. The choice depends only on type, shapes
// and the processor's maker.
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
    loops().bf16.divide_rows(sums.get() + first * cols, nullptr, {out<uint16_t>(result) + first * cols, cols},
                             last - first, cols);
  });
  return true;
}

// With so few rows MKL and oneDNN reach a fraction of the memory's bandwidth: 2 to 5 GB/s of the weight's
// bytes.
constexpr int64_t few_rows = 16;

// Dot products along the weight's rows. A row's results do not depend on the number of rows.
void linear_of_few_rows(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
                        Tensor& result) {
  const int64_t inner = x.size(1);
  by_type(x, [&]<class T>(T) {
    const LinearRowsArgs<T> args{.x = {in<T>(x), x.stride(0)},
                                 .weight = in<T>(weight),
                                 .bias = in<T>(bias),
                                 .out = {out<T>(result), result.stride(0)},
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

namespace {

// Throws Error if `ends` do not divide `rows` rows.
void check_ends(const Tensor& ends, int64_t rows) {
  const auto* const end = in<int32_t>(ends);
  int64_t first = 0;
  for (int64_t e = 0; e < ends.size(0); first = end[e++]) {
    if (end[e] < first || end[e] > rows)
      throw Error(fmt::format("expert {} has the rows [{}, {}) of {}", e, first, end[e], rows));
  }
  if (first != rows) throw Error(fmt::format("{} rows of {} belong to no expert", rows - first, rows));
}

// Calls body(expert, first row, rows) for the experts that have rows: one after the other, or on threads.
template <class Body>
void for_each_group(const Tensor& ends, int64_t rows, bool on_threads, const Body& body) {
  check_ends(ends, rows);
  const auto* const at = in<int32_t>(ends);
  const auto groups = [&](int64_t begin, int64_t end) {
    for (int64_t e = begin; e < end; ++e) {
      const int64_t first = e == 0 ? 0 : at[e - 1];
      if (at[e] > first) body(e, first, at[e] - first);
    }
  };
  on_threads ? parallel_for(ends.size(0), 1, groups) : groups(0, ends.size(0));
}

// Rows [first, first + rows) of an operand.
Tensor rows_of(const Tensor& x, const std::optional<Tensor>& order, int64_t each, int64_t first,
               int64_t rows) {
  if (!order) return x.narrow(0, first, rows);
  Tensor gathered = at::empty({rows, x.size(1)}, x.options());
  gather_rows(x, order->narrow(0, first, rows), each, gathered);
  return gathered;
}

// Whether GEMMs of a tensor are our own on tile registers. oneDNN's and MKL's reach half of their speed if
// each weight meets a few hundred rows.
bool on_tiles(const Tensor& x) {
  return x.scalar_type() == at::kBFloat16 && loops().tiles;
}

amx::Rows tile_rows(const Tensor& x, const std::optional<Tensor>& order, int64_t each, int64_t first) {
  const int64_t dim = x.size(1);
  if (order)
    return {.data = in<uint16_t>(x), .stride = dim, .order = in<int32_t>(order) + first, .each = each};
  return {.data = in<uint16_t>(x) + first * dim, .stride = dim, .order = nullptr, .each = 1};
}

// result = x op(weight). On tiles, threads take one expert after the other.
void grouped_product(const Tensor& x, const std::optional<Tensor>& order, int64_t each, const Tensor& ends,
                     const Tensor& weight, Op op, Tensor& result) {
  const int64_t k = x.size(1), n = result.size(1);
  const bool tiles = on_tiles(x);
  for_each_group(ends, result.size(0), tiles, [&](int64_t e, int64_t first, int64_t rows) {
    if (tiles) {
      return amx::product(tile_rows(x, order, each, first), rows, k, in<uint16_t>(weight) + e * k * n, op, n,
                          out<uint16_t>(result) + first * n);
    }
    const Tensor own = rows_of(x, order, each, first, rows);
    Tensor part = result.narrow(0, first, rows);
    op == Op::transpose ? linear(own, weight[e], std::nullopt, part) : matmul(own, weight[e], part);
  });
}

}  // namespace

void grouped_linear(const Tensor& x, const std::optional<Tensor>& order, int64_t each, const Tensor& ends,
                    const Tensor& weight, Tensor& result) {
  grouped_product(x, order, each, ends, weight, Op::transpose, result);
}

void grouped_matmul(const Tensor& dy, const std::optional<Tensor>& order, int64_t each, const Tensor& ends,
                    const Tensor& weight, Tensor& dx) {
  grouped_product(dy, order, each, ends, weight, Op::none, dx);
}

namespace {

// For each expert with rows.
void outer_products(const Tensor& dy, const std::optional<Tensor>& dy_order, const Tensor& x,
                    const std::optional<Tensor>& x_order, int64_t each, const Tensor& ends, Result result,
                    Tensor& weight_grad) {
  const int64_t all = dy_order ? dy_order->numel() : dy.size(0), m = dy.size(1), n = x.size(1);
  const bool tiles = on_tiles(dy);
  const auto product = result == Result::added ? accumulate_weight_gradient : weight_gradient;
  for_each_group(ends, all, tiles, [&](int64_t e, int64_t first, int64_t rows) {
    if (tiles) {
      return amx::accumulate_outer(tile_rows(dy, dy_order, each, first), tile_rows(x, x_order, each, first),
                                   rows, m, n, result, out<float>(weight_grad) + e * m * n);
    }
    Tensor part = weight_grad[e];
    product(rows_of(dy, dy_order, each, first, rows), rows_of(x, x_order, each, first, rows), part);
  });
}

}  // namespace

void accumulate_grouped_weight_gradient(const Tensor& dy, const std::optional<Tensor>& dy_order,
                                        const Tensor& x, const std::optional<Tensor>& x_order, int64_t each,
                                        const Tensor& ends, Tensor& weight_grad) {
  outer_products(dy, dy_order, x, x_order, each, ends, Result::added, weight_grad);
}

void grouped_weight_gradient(const Tensor& dy, const std::optional<Tensor>& dy_order, const Tensor& x,
                             const std::optional<Tensor>& x_order, int64_t each, const Tensor& ends,
                             Tensor& weight_grad) {
  outer_products(dy, dy_order, x, x_order, each, ends, Result::written, weight_grad);
  const auto* const end = in<int32_t>(ends);
  for (int64_t e = 0; e < ends.size(0); ++e) {
    if (end[e] == (e == 0 ? 0 : end[e - 1])) weight_grad[e].zero_();
  }
}

void add_matmul_kernels() {
  kernels::matmul.implement(BackEnd::cpu, matmul);
  kernels::linear.implement(BackEnd::cpu, linear);
  kernels::accumulate_weight_gradient.implement(BackEnd::cpu, accumulate_weight_gradient);
  kernels::weight_gradient.implement(BackEnd::cpu, weight_gradient);
  kernels::accumulate_bias_gradient.implement(BackEnd::cpu, accumulate_bias_gradient);
  kernels::grouped_linear.implement(BackEnd::cpu, grouped_linear);
  kernels::grouped_matmul.implement(BackEnd::cpu, grouped_matmul);
  kernels::accumulate_grouped_weight_gradient.implement(BackEnd::cpu, accumulate_grouped_weight_gradient);
  kernels::grouped_weight_gradient.implement(BackEnd::cpu, grouped_weight_gradient);
}

}  // namespace pptrain::kernels::cpu

#include <ATen/ops/empty.h>
#include <spdlog/fmt/fmt.h>

#include "core/base/error.h"
#include "core/kernels/cpu/amx_gemm.h"
#include "core/kernels/cpu/loops.h"
#include "core/kernels/cpu/matmul.h"
#include "core/kernels/cpu/parallel.h"
#include "core/kernels/cpu/typed.h"
#include "core/kernels/expert_kernels.h"

namespace pptrain::kernels::cpu {
namespace {

// Throws Error where `ends` do not divide `rows` rows.
void check_ends(const Tensor& ends, int64_t rows) {
  const auto* const end = in<int32_t>(ends);
  int64_t first = 0;
  for (int64_t e = 0; e < ends.size(0); first = end[e++]) {
    if (end[e] < first || end[e] > rows)
      throw Error(fmt::format("expert {} has the rows [{}, {}) of {}", e, first, end[e], rows));
  }
  if (first != rows) throw Error(fmt::format("{} rows of {} belong to no expert", rows - first, rows));
}

// Calls body(expert, first row, rows) for those of the experts [begin, end) that have rows.
template <class Body>
void for_groups(const Tensor& ends, int64_t begin, int64_t end, const Body& body) {
  const auto* const at = in<int32_t>(ends);
  for (int64_t e = begin; e < end; ++e) {
    const int64_t first = e == 0 ? 0 : at[e - 1];
    if (at[e] > first) body(e, first, at[e] - first);
  }
}

template <class Body>
void for_each_group(const Tensor& ends, int64_t rows, const Body& body) {
  check_ends(ends, rows);
  for_groups(ends, 0, ends.size(0), body);
}

template <class Body>
void for_each_group_in_parallel(const Tensor& ends, int64_t rows, const Body& body) {
  check_ends(ends, rows);
  parallel_for(ends.size(0), 1, [&](int64_t begin, int64_t end) { for_groups(ends, begin, end, body); });
}

// Rows [first, first + rows) of an operand.
Tensor rows_of(const Tensor& x, const std::optional<Tensor>& order, int64_t each, int64_t first,
               int64_t rows) {
  if (!order) return x.narrow(0, first, rows);
  Tensor gathered = at::empty({rows, x.size(1)}, x.options());
  gather_rows(x, order->narrow(0, first, rows), each, gathered);
  return gathered;
}

// Whether products of a tensor are our own on tile registers. oneDNN's and MKL's reach half of their speed
// where each weight meets a few hundred rows.
bool on_tiles(const Tensor& x) {
  return x.scalar_type() == at::kBFloat16 && isa().tiles;
}

amx::Rows tile_rows(const Tensor& x, const std::optional<Tensor>& order, int64_t each, int64_t first) {
  const int64_t dim = x.size(1);
  if (order)
    return {.data = in<uint16_t>(x), .stride = dim, .order = in<int32_t>(order) + first, .each = each};
  return {.data = in<uint16_t>(x) + first * dim, .stride = dim, .order = nullptr, .each = 1};
}

// Threads take one expert after the other.
void product_on_tiles(const Tensor& x, const std::optional<Tensor>& order, int64_t each, const Tensor& ends,
                      const Tensor& weight, amx::Inner inner, Tensor& result) {
  const int64_t k = x.size(1), n = result.size(1);
  for_each_group_in_parallel(ends, result.size(0), [&](int64_t e, int64_t first, int64_t rows) {
    amx::product(tile_rows(x, order, each, first), rows, k, in<uint16_t>(weight) + e * k * n, inner, n,
                 out<uint16_t>(result) + first * n);
  });
}

}  // namespace

void grouped_linear(const Tensor& x, const std::optional<Tensor>& order, int64_t each, const Tensor& ends,
                    const Tensor& weight, Tensor& result) {
  if (on_tiles(x)) return product_on_tiles(x, order, each, ends, weight, amx::Inner::along, result);
  for_each_group(ends, result.size(0), [&](int64_t e, int64_t first, int64_t rows) {
    Tensor part = result.narrow(0, first, rows);
    linear(rows_of(x, order, each, first, rows), weight[e], std::nullopt, part);
  });
}

void grouped_matmul(const Tensor& dy, const std::optional<Tensor>& order, int64_t each, const Tensor& ends,
                    const Tensor& weight, Tensor& dx) {
  if (on_tiles(dy)) return product_on_tiles(dy, order, each, ends, weight, amx::Inner::across, dx);
  for_each_group(ends, dx.size(0), [&](int64_t e, int64_t first, int64_t rows) {
    Tensor part = dx.narrow(0, first, rows);
    matmul(rows_of(dy, order, each, first, rows), weight[e], part);
  });
}

namespace {

// Of each expert with rows.
void outer_products(const Tensor& dy, const std::optional<Tensor>& dy_order, const Tensor& x,
                    const std::optional<Tensor>& x_order, int64_t each, const Tensor& ends, Result result,
                    Tensor& weight_grad) {
  const int64_t all = dy_order ? dy_order->numel() : dy.size(0), m = dy.size(1), n = x.size(1);
  if (on_tiles(dy)) {
    return for_each_group_in_parallel(ends, all, [&](int64_t e, int64_t first, int64_t rows) {
      amx::accumulate_outer(tile_rows(dy, dy_order, each, first), tile_rows(x, x_order, each, first), rows, m,
                            n, result, out<float>(weight_grad) + e * m * n);
    });
  }
  const auto product = result == Result::added ? accumulate_weight_gradient : weight_gradient;
  for_each_group(ends, all, [&](int64_t e, int64_t first, int64_t rows) {
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

void add_grouped_kernels() {
  kernels::grouped_linear.implement(BackEnd::cpu, grouped_linear);
  kernels::grouped_matmul.implement(BackEnd::cpu, grouped_matmul);
  kernels::accumulate_grouped_weight_gradient.implement(BackEnd::cpu, accumulate_grouped_weight_gradient);
  kernels::grouped_weight_gradient.implement(BackEnd::cpu, grouped_weight_gradient);
}

}  // namespace pptrain::kernels::cpu

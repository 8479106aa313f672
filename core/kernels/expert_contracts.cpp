// What the kernels of experts accept, and what they cost.
#include "core/kernels/checks.h"
#include "core/kernels/cost.h"
#include "core/kernels/expert_kernels.h"

namespace pptrain::kernels {
namespace {

// dim `d` of a tensor that a later check reports if it has fewer.
int64_t size_of(const Tensor& tensor, int64_t d) {
  return tensor.defined() && tensor.dim() > d ? tensor.size(d) : -1;
}

void check_route(const Checks& checks, const Tensor& logits, const std::optional<Tensor>& bias, bool,
                 const Tensor& probabilities, const Tensor& logsumexp, const Tensor& chosen,
                 const Tensor& weights) {
  checks.compute("logits", logits, 2);
  const int64_t tokens = logits.size(0), experts = logits.size(1), k = size_of(chosen, 1);
  checks.require(k >= 1 && k <= experts, "every token chooses from 1 to all of the experts")
      .dense("logits", logits, at::kFloat, {tokens, experts})
      .dense("probabilities", probabilities, at::kFloat, {tokens, experts})
      .dense("logsumexp", logsumexp, at::kFloat, {tokens})
      .dense("chosen", chosen, at::kInt, {tokens, k})
      .dense("weights", weights, at::kFloat, {tokens, k});
  if (bias) checks.dense("bias", *bias, at::kFloat, {experts});
}

void check_route_backward(const Checks& checks, const Tensor& dweights, const Tensor& probabilities,
                          const Tensor& logsumexp, const Tensor& chosen, const std::optional<Tensor>& slopes,
                          double, const std::optional<Tensor>& filling, bool, const Tensor& dlogits) {
  checks.compute("dweights", dweights, 2).compute("probabilities", probabilities, 2);
  const int64_t tokens = probabilities.size(0), experts = probabilities.size(1), k = dweights.size(1);
  checks.dense("dweights", dweights, at::kFloat, {tokens, k})
      .dense("probabilities", probabilities, at::kFloat, {tokens, experts})
      .dense("logsumexp", logsumexp, at::kFloat, {tokens})
      .dense("chosen", chosen, at::kInt, {tokens, k})
      .dense("dlogits", dlogits, at::kFloat, {tokens, experts});
  if (slopes) checks.dense("slopes", *slopes, at::kFloat, {experts});
  if (filling) checks.dense("filling", *filling, at::kBool, {tokens});
}

void check_group_rows(const Checks& checks, const Tensor& chosen, const Tensor& ends, const Tensor& order,
                      const Tensor& place) {
  const int64_t tokens = size_of(chosen, 0), k = size_of(chosen, 1);
  checks.dense("chosen", chosen, at::kInt, {tokens, k})
      .dense("ends", ends, at::kInt, {size_of(ends, 0)})
      .dense("order", order, at::kInt, {tokens * k})
      .dense("place", place, at::kInt, {tokens, k});
}

void check_gather_rows(const Checks& checks, const Tensor& x, const Tensor& order, int64_t each,
                       const Tensor& out) {
  checks.dense_compute("x", x, 2);
  const int64_t dim = x.size(1), rows = size_of(order, 0);
  checks.require(each >= 1, "each row is wanted at least once")
      .dense("order", order, at::kInt, {rows})
      .dense("out", out, x.scalar_type(), {rows, dim});
}

// Each row of the result is read somewhere.
Cost cost_gather_rows(const Tensor&, const Tensor& order, int64_t, const Tensor& out) {
  return moving(order, out, out);
}

void check_sum_rows(const Checks& checks, const Tensor& x, const Tensor& place,
                    const std::optional<Tensor>& residual, const Tensor& out) {
  checks.dense_compute("x", x, 2);
  const int64_t dim = x.size(1), tokens = size_of(place, 0), k = size_of(place, 1);
  checks.require(k >= 1, "place must have a column")
      .dense("place", place, at::kInt, {tokens, k})
      .dense("out", out, x.scalar_type(), {tokens, dim});
  if (residual) checks.dense("residual", *residual, at::kFloat, {tokens, dim});
}

// An operand of a grouped GEMM, whose rows may be named by an order.
void check_rows(const Checks& checks, const char* name, const Tensor& x, const std::optional<Tensor>& order,
                int64_t each, int64_t rows, int64_t dim) {
  checks.require(each >= 1, "each row is wanted at least once")
      .dense(name, x, x.scalar_type(), {order ? x.size(0) : rows, dim});
  if (order) checks.dense("order", *order, at::kInt, {rows});
}

void check_grouped_linear(const Checks& checks, const Tensor& x, const std::optional<Tensor>& order,
                          int64_t each, const Tensor& ends, const Tensor& weight, const Tensor& out) {
  checks.compute("x", x, 2).compute("weight", weight, 3).compute("out", out, 2);
  const int64_t experts = weight.size(0), outputs = weight.size(1), inputs = weight.size(2);
  check_rows(checks, "x", x, order, each, out.size(0), inputs);
  checks.dense_or_on_host("ends", ends, at::kInt, {experts})
      .dense("weight", weight, x.scalar_type(), {experts, outputs, inputs})
      .dense("out", out, x.scalar_type(), {out.size(0), outputs});
}

void check_grouped_matmul(const Checks& checks, const Tensor& dy, const std::optional<Tensor>& order,
                          int64_t each, const Tensor& ends, const Tensor& weight, const Tensor& dx) {
  checks.compute("dy", dy, 2).compute("weight", weight, 3).compute("dx", dx, 2);
  const int64_t experts = weight.size(0), outputs = weight.size(1), inputs = weight.size(2);
  check_rows(checks, "dy", dy, order, each, dx.size(0), outputs);
  checks.dense_or_on_host("ends", ends, at::kInt, {experts})
      .dense("weight", weight, dy.scalar_type(), {experts, outputs, inputs})
      .dense("dx", dx, dy.scalar_type(), {dx.size(0), inputs});
}

// Bytes of `rows` rows of x, in any order.
double bytes_of_rows(const Tensor& x, int64_t rows) {
  return static_cast<double>(rows * x.size(1) * x.element_size());
}

// For both GEMMs: every row meets one weight, and every weight is read.
Cost cost_grouped_product(const Tensor& a, const std::optional<Tensor>& order, int64_t, const Tensor& ends,
                          const Tensor& weight, const Tensor& out) {
  Cost cost = moving(order, ends, weight, out);
  cost.bytes += bytes_of_rows(a, out.size(0));
  cost.product_flops = 2.0 * static_cast<double>(out.numel()) * static_cast<double>(a.size(1));
  cost.weight_bytes = bytes_of(weight);
  return cost;
}

// As many rows as an operand without an order has, or as its order names.
int64_t rows_of(const Tensor& x, const std::optional<Tensor>& order) {
  return order ? order->numel() : x.size(0);
}

void check_grouped_weight_gradient(const Checks& checks, const Tensor& dy,
                                   const std::optional<Tensor>& dy_order, const Tensor& x,
                                   const std::optional<Tensor>& x_order, int64_t each, const Tensor& ends,
                                   const Tensor& weight_grad) {
  checks.compute("dy", dy, 2).compute("x", x, 2);
  const int64_t rows = rows_of(dy, dy_order), outputs = dy.size(1), inputs = x.size(1);
  check_rows(checks, "dy", dy, dy_order, each, rows, outputs);
  check_rows(checks, "x", x, x_order, each, rows, inputs);
  checks.require(x.scalar_type() == dy.scalar_type(), "x and dy must have one type")
      .dense_or_on_host("ends", ends, at::kInt, {size_of(ends, 0)})
      .dense("weight_grad", weight_grad, at::kFloat, {size_of(ends, 0), outputs, inputs});
}

// Rows that an order names are copied side by side first (cuda/gemm.cu).
int64_t bytes_of_copies(const Tensor& x, const std::optional<Tensor>& order) {
  return order ? order->numel() * x.size(1) * static_cast<int64_t>(x.element_size()) : 0;
}

int64_t grouped_scratch(const Tensor& a, const std::optional<Tensor>& order, int64_t, const Tensor&,
                        const Tensor&, const Tensor&) {
  return bytes_of_copies(a, order) + gemm_workspace_bytes;
}

int64_t grouped_gradient_scratch(const Tensor& dy, const std::optional<Tensor>& dy_order, const Tensor& x,
                                 const std::optional<Tensor>& x_order, int64_t, const Tensor&,
                                 const Tensor&) {
  return bytes_of_copies(dy, dy_order) + bytes_of_copies(x, x_order) + gemm_workspace_bytes;
}

// The gradient is read and written; no weights are.
Cost cost_accumulate_grouped(const Tensor& dy, const std::optional<Tensor>& dy_order, const Tensor& x,
                             const std::optional<Tensor>& x_order, int64_t, const Tensor& ends,
                             const Tensor& weight_grad) {
  const int64_t rows = rows_of(dy, dy_order);
  Cost cost = moving(dy_order, x_order, ends, weight_grad, weight_grad);
  cost.bytes += bytes_of_rows(dy, rows) + bytes_of_rows(x, rows);
  cost.product_flops = 2.0 * static_cast<double>(rows * dy.size(1)) * static_cast<double>(x.size(1));
  return cost;
}

// It is written alone.
Cost cost_grouped_weight_gradient(const Tensor& dy, const std::optional<Tensor>& dy_order, const Tensor& x,
                                  const std::optional<Tensor>& x_order, int64_t each, const Tensor& ends,
                                  const Tensor& weight_grad) {
  Cost cost = cost_accumulate_grouped(dy, dy_order, x, x_order, each, ends, weight_grad);
  cost.bytes -= bytes_of(weight_grad);
  return cost;
}

}  // namespace

void add_expert_contracts() {
  route.accept(check_route);
  route_backward.accept(check_route_backward);
  group_rows.accept(check_group_rows);
  gather_rows.accept(check_gather_rows, cost_gather_rows);
  sum_rows.accept(check_sum_rows);
  grouped_linear.accept(check_grouped_linear, cost_grouped_product);
  grouped_matmul.accept(check_grouped_matmul, cost_grouped_product);
  accumulate_grouped_weight_gradient.accept(check_grouped_weight_gradient, cost_accumulate_grouped);
  grouped_weight_gradient.accept(check_grouped_weight_gradient, cost_grouped_weight_gradient);
  grouped_linear.takes_on_gpu(grouped_scratch);
  grouped_matmul.takes_on_gpu(grouped_scratch);
  accumulate_grouped_weight_gradient.takes_on_gpu(grouped_gradient_scratch);
  grouped_weight_gradient.takes_on_gpu(grouped_gradient_scratch);
}

}  // namespace pptrain::kernels

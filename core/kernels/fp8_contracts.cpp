// What the kernels of fp8_kernels.h accept, and what they cost.
#include "core/kernels/checks.h"
#include "core/kernels/cost.h"
#include "core/kernels/fp8_kernels.h"

namespace pptrain::kernels {
namespace {

void check_quantize_rows(const Checks& checks, const Tensor& x, const Tensor& values, const Tensor& scales) {
  checks.compute("x", x, 2);
  checks.strided("x", x, at::kBFloat16, {x.size(0), x.size(1)})
      .dense("values", values, at::kFloat8_e4m3fn, {x.size(0), x.size(1)})
      .dense("scales", scales, at::kFloat, {x.size(0)});
}

void check_quantize_columns(const Checks& checks, const Tensor& x, const Tensor& values,
                            const Tensor& scales) {
  checks.compute("x", x, 2);
  checks.dense("x", x, at::kBFloat16, {x.size(0), x.size(1)})
      .dense("values", values, at::kFloat8_e4m3fn, {x.size(1), x.size(0)})
      .dense("scales", scales, at::kFloat, {x.size(1)});
}

// x is read twice: for the scales, then for the numbers.
Cost cost_quantize(const Tensor& x, const Tensor& values, const Tensor& scales) {
  return moving(x, x, values, scales);
}

// a: [m, k], b: [n, k], with a scale for each row.
const Checks& check_operands(const Checks& checks, const Tensor& a, const Tensor& a_scales, const Tensor& b,
                             const Tensor& b_scales) {
  checks.require(a.dim() == 2 && b.dim() == 2, "both operands must be matrices");
  return checks.dense("a", a, at::kFloat8_e4m3fn, {a.size(0), a.size(1)})
      .dense("a_scales", a_scales, at::kFloat, {a.size(0)})
      .dense("b", b, at::kFloat8_e4m3fn, {b.size(0), a.size(1)})
      .dense("b_scales", b_scales, at::kFloat, {b.size(0)});
}

void check_fp8_linear(const Checks& checks, const Tensor& a, const Tensor& a_scales, const Tensor& b,
                      const Tensor& b_scales, const std::optional<Tensor>& bias, const Tensor& out) {
  check_operands(checks, a, a_scales, b, b_scales).dense("out", out, at::kBFloat16, {a.size(0), b.size(0)});
  if (bias) checks.dense("bias", *bias, at::kBFloat16, {b.size(0)});
}

GemmShape gemm_of_fp8_linear(const Tensor& a, const Tensor&, const Tensor& b, const Tensor&,
                             const std::optional<Tensor>&, const Tensor&) {
  return {.m = a.size(0), .n = b.size(0), .k = a.size(1)};
}

// A CPU widens both operands to bfloat16, and multiplies these.
int64_t widened_bytes(const Tensor& a, const Tensor&, const Tensor& b, const Tensor&,
                      const std::optional<Tensor>&, const Tensor&) {
  return 2 * (a.numel() + b.numel());
}

bool is_on_cpu(const Tensor& tensor) {
  return tensor.is_cpu() || (tensor.is_meta() && !dry_gpu().is_gpu());
}

Cost cost_fp8_linear(const Tensor& a, const Tensor& a_scales, const Tensor& b, const Tensor& b_scales,
                     const std::optional<Tensor>& bias, const Tensor& out) {
  Cost cost = moving(a, a_scales, b, b_scales, bias, out);
  cost.product_flops = cost.fp8_flops =
      2.0 * static_cast<double>(a.size(0) * b.size(0)) * static_cast<double>(a.size(1));
  cost.weight_bytes = bytes_of(b);
  if (is_on_cpu(a)) {
    cost.bytes +=
        2 * static_cast<double>(widened_bytes(a, a_scales, b, b_scales, bias, out));  // written and read
    cost.weight_bytes = 2 * static_cast<double>(b.numel());
    cost.fp8_flops = 0;
  }
  return cost;
}

void check_fp8_weight_gradient(const Checks& checks, const Tensor& a, const Tensor& a_scales, const Tensor& b,
                               const Tensor& b_scales, bool, const Tensor& weight_grad) {
  check_operands(checks, a, a_scales, b, b_scales)
      .dense("weight_grad", weight_grad, at::kFloat, {a.size(0), b.size(0)});
}

GemmShape gemm_of_fp8_weight_gradient(const Tensor& a, const Tensor&, const Tensor& b, const Tensor&, bool,
                                      const Tensor&) {
  return {.m = a.size(0), .n = b.size(0), .k = a.size(1)};
}

// Both operands are widened to bfloat16, and turned: their columns then are rows of tokens.
int64_t turned_bytes(const Tensor& a, const Tensor&, const Tensor& b, const Tensor&, bool, const Tensor&) {
  return 2 * 2 * (a.numel() + b.numel());
}

Cost cost_fp8_weight_gradient(const Tensor& a, const Tensor& a_scales, const Tensor& b,
                              const Tensor& b_scales, bool adds, const Tensor& weight_grad) {
  Cost cost = moving(a, a_scales, b, b_scales, weight_grad);
  if (adds) cost.bytes += static_cast<double>(weight_grad.nbytes());
  cost.bytes += 2 * static_cast<double>(turned_bytes(a, a_scales, b, b_scales, adds, weight_grad));
  cost.product_flops = 2.0 * static_cast<double>(a.size(0) * b.size(0)) * static_cast<double>(a.size(1));
  return cost;
}

}  // namespace

void add_fp8_contracts() {
  quantize_rows.accept(check_quantize_rows, cost_quantize);
  quantize_columns.accept(check_quantize_columns, cost_quantize);
  fp8_linear.accept(check_fp8_linear, cost_fp8_linear, gemm_of_fp8_linear);
  fp8_linear.takes_on_cpu(widened_bytes);
  fp8_weight_gradient.accept(check_fp8_weight_gradient, cost_fp8_weight_gradient,
                             gemm_of_fp8_weight_gradient);
  fp8_weight_gradient.takes_on_cpu(turned_bytes);
}

}  // namespace pptrain::kernels

// What each kernel accepts (dtypes, shapes and strides of its arguments, checked before a back end sees
// them), and what it costs, if that is more than its arguments' bytes once.
#include <limits>

#include "core/kernels/back_ends.h"
#include "core/kernels/checks.h"
#include "core/kernels/cost.h"
#include "core/kernels/exact_sum.h"
#include "core/kernels/expert_kernels.h"
#include "core/kernels/kernels.h"

namespace pptrain::kernels {
namespace {

void check_rope(const Checks& checks, const Tensor& x, const RopeTable& rope, const Tensor& positions) {
  const int64_t max_position = rope.cos.defined() ? rope.cos.size(0) : 0;
  checks.require(x.size(2) % 2 == 0, "head_dim must be even")
      .dense("rope.cos", rope.cos, at::kFloat, {max_position, x.size(2) / 2})
      .dense("rope.sin", rope.sin, at::kFloat, {max_position, x.size(2) / 2})
      .dense("positions", positions, at::kInt, {x.size(0)});
}

// A row of both tables for each position, and the positions.
Cost cost_rope(const RopeTable& rope, const Tensor& positions) {
  Cost cost = moving(positions);
  cost.bytes += static_cast<double>(2 * positions.numel() * rope.cos.size(1)) * sizeof(float);
  return cost;
}

void check_rms_norm(const Checks& checks, const Tensor& x, const Tensor& weight, double, const Tensor& y,
                    const Tensor& rstd) {
  checks.dense_compute("x", x, 2)
      .dense("weight", weight, at::kFloat, {x.size(1)})
      .dense("y", y, x.scalar_type(), {x.size(0), x.size(1)})
      .dense("rstd", rstd, at::kFloat, {x.size(0)});
}

void check_add_rms_norm(const Checks& checks, const Tensor& x, const Tensor& delta, const Tensor& weight,
                        double eps, const Tensor& sum, const Tensor& y, const Tensor& rstd) {
  check_rms_norm(checks, x, weight, eps, y, rstd);
  checks.dense("delta", delta, x.scalar_type(), {x.size(0), x.size(1)})
      .dense("sum", sum, x.scalar_type(), {x.size(0), x.size(1)});
}

void check_rms_norm_backward(const Checks& checks, const Tensor& dy, const Tensor& x, const Tensor& weight,
                             const Tensor& rstd, const std::optional<Tensor>& residual_grad, const Tensor& dx,
                             const Tensor& weight_grad) {
  checks.dense_compute("x", x, 2);
  const int64_t rows = x.size(0);
  const int64_t dim = x.size(1);
  checks.dense("dy", dy, x.scalar_type(), {rows, dim})
      .dense("weight", weight, at::kFloat, {dim})
      .dense("rstd", rstd, at::kFloat, {rows})
      .dense("dx", dx, x.scalar_type(), {rows, dim})
      .dense("weight_grad", weight_grad, at::kFloat, {dim});
  if (residual_grad) {
    checks.dense("residual_grad", *residual_grad, x.scalar_type(), {rows, dim});
  }
}

Cost cost_rms_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& weight, const Tensor& rstd,
                            const std::optional<Tensor>& residual_grad, const Tensor& dx,
                            const Tensor& weight_grad) {
  return moving(dy, x, weight, rstd, residual_grad, dx, weight_grad, weight_grad);
}

// What all parts share. first_name: of a part's first tensor.
template <class Part>
void check_heads(const Checks& checks, const char* first_name, const std::vector<Part>& parts,
                 const RopeTable& rope, const Tensor& positions) {
  checks.require(parts.size() <= 2, "there may be at most two parts");
  for (const Part& part : parts) {
    checks.compute(first_name, part.first(), 3)
        .require(part.weight.has_value() == parts.front().weight.has_value(),
                 "all parts have a weight, or none has");
  }
  check_rope(checks, parts.front().first(), rope, positions);
}

void check_norm_rope(const Checks& checks, const std::vector<HeadsPart>& parts, double, const RopeTable& rope,
                     const Tensor& positions) {
  check_heads(checks, "x", parts, rope, positions);
  const Tensor& first = parts.front().x;
  for (const HeadsPart& part : parts) {
    const auto shape = {first.size(0), part.x.size(1), first.size(2)};
    checks.strided("x", part.x, first.scalar_type(), shape).strided("y", part.y, first.scalar_type(), shape);
    if (part.weight) {
      checks.dense("weight", *part.weight, at::kFloat, {first.size(2)})
          .dense("rstd", part.rstd, at::kFloat, {first.size(0), part.x.size(1)});
    }
  }
}

Cost cost_norm_rope(const std::vector<HeadsPart>& parts, double, const RopeTable& rope,
                    const Tensor& positions) {
  Cost cost = cost_rope(rope, positions);
  for (const HeadsPart& part : parts) {
    cost.bytes += bytes_of(part.x) + bytes_of(part.y);
    if (part.weight) cost.bytes += bytes_of(part.weight) + bytes_of(part.rstd);
  }
  return cost;
}

void check_norm_rope_backward(const Checks& checks, const std::vector<HeadsGradient>& parts,
                              const RopeTable& rope, const Tensor& positions) {
  check_heads(checks, "dy", parts, rope, positions);
  const Tensor& first = parts.front().dy;
  for (const HeadsGradient& part : parts) {
    const auto shape = {first.size(0), part.dy.size(1), first.size(2)};
    checks.strided("dy", part.dy, first.scalar_type(), shape)
        .strided("dx", part.dx, first.scalar_type(), shape);
    if (part.weight) {
      checks.require(part.weight_grad.has_value(), "weight_grad is missing")
          .strided("x", part.x, first.scalar_type(), shape)
          .dense("weight", *part.weight, at::kFloat, {first.size(2)})
          .dense("weight_grad", *part.weight_grad, at::kFloat, {first.size(2)})
          .dense("rstd", part.rstd, at::kFloat, {first.size(0), part.dy.size(1)});
    }
  }
}

Cost cost_norm_rope_backward(const std::vector<HeadsGradient>& parts, const RopeTable& rope,
                             const Tensor& positions) {
  Cost cost = cost_rope(rope, positions);
  for (const HeadsGradient& part : parts) {
    cost.bytes += bytes_of(part.dy) + bytes_of(part.dx);
    if (part.weight) {
      cost.bytes +=
          bytes_of(part.x) + bytes_of(part.weight) + bytes_of(part.rstd) + 2 * bytes_of(part.weight_grad);
    }
  }
  return cost;
}

void check_swiglu(const Checks& checks, const Tensor& gate_up, const Tensor& y) {
  checks.dense_compute("y", y, 2).dense("gate_up", gate_up, y.scalar_type(), {y.size(0), 2 * y.size(1)});
}

void check_swiglu_backward(const Checks& checks, const Tensor& dy, const Tensor& gate_up,
                           const Tensor& dgate_up, const std::optional<Tensor>& y) {
  checks.dense_compute("dy", dy, 2)
      .dense("gate_up", gate_up, dy.scalar_type(), {dy.size(0), 2 * dy.size(1)})
      .dense("dgate_up", dgate_up, dy.scalar_type(), {dy.size(0), 2 * dy.size(1)});
  if (y) checks.dense("y", *y, dy.scalar_type(), {dy.size(0), dy.size(1)});
}

void check_weighted_swiglu(const Checks& checks, const Tensor& gate_up, const Tensor& weights,
                           const Tensor& y) {
  check_swiglu(checks, gate_up, y);
  checks.dense("weights", weights, at::kFloat, {y.size(0)});
}

void check_weighted_swiglu_backward(const Checks& checks, const Tensor& dy, const Tensor& gate_up,
                                    const Tensor& weights, const Tensor& dgate_up, const Tensor& dweights,
                                    const std::optional<Tensor>& y) {
  check_swiglu_backward(checks, dy, gate_up, dgate_up, y);
  checks.dense("weights", weights, at::kFloat, {dy.size(0)})
      .dense("dweights", dweights, at::kFloat, {dy.size(0)});
}

// x: as wide as y, or gate and up side by side.
void check_activated(const Checks& checks, const Tensor& x, const Tensor& y) {
  checks.compute("x", x, 2);
  const int64_t columns = x.size(1) == y.size(1) ? y.size(1) : 2 * y.size(1);
  checks.dense("x", x, y.scalar_type(), {y.size(0), columns});
}

void check_activate(const Checks& checks, const Tensor& x, Activation, const Tensor& y) {
  checks.dense_compute("y", y, 2);
  check_activated(checks, x, y);
}

void check_activate_backward(const Checks& checks, const Tensor& dy, const Tensor& x, Activation,
                             const Tensor& dx, const std::optional<Tensor>& y) {
  checks.dense_compute("dy", dy, 2);
  check_activated(checks, x, dy);
  checks.dense("dx", dx, dy.scalar_type(), {x.size(0), x.size(1)});
  if (y) checks.dense("y", *y, dy.scalar_type(), {dy.size(0), dy.size(1)});
}

// `moved`, with the operations of a GEMM and the bytes of the weight that it reads.
Cost cost_of(const GemmShape& gemm, Cost moved, double weight_bytes = 0) {
  moved.product_flops = 2.0 * static_cast<double>(gemm.m * gemm.n) * static_cast<double>(gemm.k);
  moved.weight_bytes = weight_bytes;
  return moved;
}

void check_matmul(const Checks& checks, const Tensor& a, const Tensor& b, const Tensor& out) {
  checks.dense_compute("a", a, 2)
      .compute("b", b, 2)
      .dense("b", b, a.scalar_type(), {a.size(1), b.size(1)})
      .dense("out", out, a.scalar_type(), {a.size(0), b.size(1)});
}

GemmShape gemm_of_matmul(const Tensor& a, const Tensor& b, const Tensor&) {
  return {.m = a.size(0), .n = b.size(1), .k = a.size(1)};
}

Cost cost_matmul(const Tensor& a, const Tensor& b, const Tensor& out) {
  return cost_of(gemm_of_matmul(a, b, out), moving(a, b, out), bytes_of(b));
}

void check_linear(const Checks& checks, const Tensor& x, const Tensor& weight,
                  const std::optional<Tensor>& bias, const Tensor& out) {
  checks.compute("x", x, 2).compute("weight", weight, 2);
  const int64_t outputs = weight.size(0);
  checks.strided("x", x, x.scalar_type(), {x.size(0), weight.size(1)})
      .dense("weight", weight, x.scalar_type(), {outputs, weight.size(1)})
      .dense("out", out, x.scalar_type(), {x.size(0), outputs});
  if (bias) {
    checks.dense("bias", *bias, x.scalar_type(), {outputs});
  }
}

GemmShape gemm_of_linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>&, const Tensor&) {
  return {.m = x.size(0), .n = weight.size(0), .k = x.size(1)};
}

Cost cost_linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
                 const Tensor& out) {
  return cost_of(gemm_of_linear(x, weight, bias, out), moving(x, weight, bias, out), bytes_of(weight));
}

void check_weight_gradient(const Checks& checks, const Tensor& dy, const Tensor& x,
                           const Tensor& weight_grad) {
  checks.compute("dy", dy, 2).compute("x", x, 2);
  checks.dense("dy", dy, dy.scalar_type(), {dy.size(0), dy.size(1)})
      .dense("x", x, dy.scalar_type(), {dy.size(0), x.size(1)})
      .dense("weight_grad", weight_grad, at::kFloat, {dy.size(1), x.size(1)});
}

GemmShape gemm_of_weight_gradient(const Tensor& dy, const Tensor& x, const Tensor&) {
  return {.m = dy.size(1), .n = x.size(1), .k = dy.size(0)};
}

// The gradient is read and written; no weights are.
Cost cost_accumulate_weight_gradient(const Tensor& dy, const Tensor& x, const Tensor& weight_grad) {
  return cost_of(gemm_of_weight_gradient(dy, x, weight_grad), moving(dy, x, weight_grad, weight_grad));
}

// It is written alone.
Cost cost_weight_gradient(const Tensor& dy, const Tensor& x, const Tensor& weight_grad) {
  return cost_of(gemm_of_weight_gradient(dy, x, weight_grad), moving(dy, x, weight_grad));
}

void check_accumulate_bias_gradient(const Checks& checks, const Tensor& dy, const Tensor& bias_grad) {
  checks.dense_compute("dy", dy, 2).dense("bias_grad", bias_grad, at::kFloat, {dy.size(1)});
}

Cost cost_accumulate_bias_gradient(const Tensor& dy, const Tensor& bias_grad) {
  return moving(dy, bias_grad, bias_grad);
}

void check_normal_values(const Checks& checks, const Tensor& out, uint64_t, int64_t first, double) {
  checks.require(out.scalar_type() == at::kFloat && out.is_contiguous(), "out must be contiguous float32")
      .require(first >= 0 && first <= std::numeric_limits<int64_t>::max() - out.numel(),
               "values are numbered from 0 to 2^63 - 1");
}

void check_step(const Checks& checks, const std::vector<StepPart>& parts) {
  for (const StepPart& part : parts) {
    const int64_t size = part.weight.numel();
    const at::ScalarType state = parts.front().exp_avg.scalar_type();
    checks.dense("weight", part.weight, at::kFloat, {size})
        .dense("grad", part.grad, at::kFloat, {size})
        .dense_compute("exp_avg", part.exp_avg, 1)
        .dense("exp_avg", part.exp_avg, state, {size})
        .require(part.args.step >= 1, "steps are counted from 1");
    if (part.compute) checks.dense("compute", *part.compute, at::kBFloat16, {size});
    if (!part.previous) continue;
    checks.dense("previous.weight", part.previous->weight, at::kFloat, {size})
        .dense("previous.exp_avg", part.previous->exp_avg, state, {size});
  }
}

void check_adamw(const Checks& checks, const std::vector<StepPart>& parts) {
  check_step(checks, parts);
  for (const StepPart& part : parts) {
    const int64_t size = part.weight.numel();
    const at::ScalarType state = part.exp_avg.scalar_type();
    checks.dense("exp_avg_sq", part.exp_avg_sq, state, {size});
    if (part.previous) checks.dense("previous.exp_avg_sq", part.previous->exp_avg_sq, state, {size});
  }
}

// Weight and moments are read and written.
Cost cost_step(const std::vector<StepPart>& parts) {
  Cost cost{.kernels = 1};
  for (const StepPart& p : parts) {
    cost.bytes +=
        moving(p.weight, p.weight, p.grad, p.exp_avg, p.exp_avg, p.exp_avg_sq, p.exp_avg_sq, p.compute).bytes;
    if (p.previous)
      cost.bytes += moving(p.previous->weight, p.previous->exp_avg, p.previous->exp_avg_sq).bytes;
  }
  return cost;
}

void check_momentum(const Checks& checks, const Tensor& average, const Tensor& grad, const Tensor& next,
                    double, double) {
  const int64_t size = average.numel();
  checks.dense("average", average, at::kFloat, {size})
      .dense("grad", grad, at::kFloat, {size})
      .compute("next", next, 1)
      .dense("next", next, next.scalar_type(), {size});
}

void check_descend(const Checks& checks, const Tensor& weight, const Tensor& direction,
                   const std::optional<Tensor>& compute, double, double) {
  const int64_t size = weight.numel();
  checks.dense("weight", weight, at::kFloat, {size})
      .compute("direction", direction, 1)
      .dense("direction", direction, direction.scalar_type(), {size});
  if (compute) {
    checks.dense("compute", *compute, at::kBFloat16, {size});
  }
}

// The weight is read and written.
Cost cost_descend(const Tensor& weight, const Tensor& direction, const std::optional<Tensor>& compute, double,
                  double) {
  return moving(weight, weight, direction, compute);
}

void check_add_squares(const Checks& checks, const std::vector<BufferPart>& parts, const Tensor& sum) {
  for (const BufferPart& part : parts) {
    const bool fits = part.x.scalar_type() == at::kFloat && part.x.is_contiguous();
    checks.require(fits, "x must be contiguous float32")
        .require(part.x.device() == sum.device(), "x and sum must be on one device")
        .require(part.place >= 0, "place counts from the buffer's start");
  }
  checks.dense("sum", sum, at::kLong, {exact_words});
}

Cost cost_add_squares(const std::vector<BufferPart>& parts, const Tensor& sum) {
  Cost cost = moving(sum);
  for (const BufferPart& part : parts) cost.bytes += bytes_of(part.x);
  return cost;
}

}  // namespace

void add_vocabulary_contracts();  // vocabulary_contracts.cpp
void add_expert_contracts();      // expert_contracts.cpp
void add_fp8_contracts();         // fp8_contracts.cpp

void add_contracts() {
  rms_norm.accept(check_rms_norm);
  add_rms_norm.accept(check_add_rms_norm);
  rms_norm_backward.accept(check_rms_norm_backward, cost_rms_norm_backward);
  norm_rope.accept(check_norm_rope, cost_norm_rope);
  norm_rope_backward.accept(check_norm_rope_backward, cost_norm_rope_backward);
  swiglu.accept(check_swiglu);
  swiglu_backward.accept(check_swiglu_backward);
  weighted_swiglu.accept(check_weighted_swiglu);
  weighted_swiglu_backward.accept(check_weighted_swiglu_backward);
  activate.accept(check_activate);
  activate_backward.accept(check_activate_backward);
  matmul.accept(check_matmul, cost_matmul, gemm_of_matmul);
  linear.accept(check_linear, cost_linear, gemm_of_linear);
  accumulate_weight_gradient.accept(check_weight_gradient, cost_accumulate_weight_gradient,
                                    gemm_of_weight_gradient);
  weight_gradient.accept(check_weight_gradient, cost_weight_gradient, gemm_of_weight_gradient);
  accumulate_bias_gradient.accept(check_accumulate_bias_gradient, cost_accumulate_bias_gradient);
  normal_values.accept(check_normal_values);
  adamw.accept(check_adamw, cost_step);
  add_squares.accept(check_add_squares, cost_add_squares);
  add_vocabulary_contracts();
  add_expert_contracts();
  add_fp8_contracts();
  lion.accept(check_step, cost_step);
  momentum.accept(check_momentum);
  descend.accept(check_descend, cost_descend);
}

}  // namespace pptrain::kernels

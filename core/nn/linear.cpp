#include "core/nn/linear.h"

#include <ATen/ops/empty.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "core/base/error.h"
#include "core/kernels/fp8_kernels.h"
#include "core/kernels/kernels.h"

namespace pptrain::nn {
namespace {

ParameterSpec bias_of(const LinearPart& part) {
  return {.name = part.name + ".bias", .shape = {part.out_features}, .role = Role::bias};
}

// This rank's shard of dim `dim`.
Linear::Hold cut_along(const TensorShard& cut, int dim) {
  return [=](ParameterSpec spec) { return cut.cut(std::move(spec), dim); };
}

// Exchanges for a weight gradient overlap with the input gradient, so a second stream is of no use if there
// are several ranks.
bool takes_at_once(const HasWeightGradient& layer, const WeightGradQueue& queue, const TensorGroup& tp) {
  if (!layer.learns()) return false;
  return queue.mode() == WeightGradQueue::Mode::immediate ||
         (queue.mode() == WeightGradQueue::Mode::beside && !tp.alone());
}

}  // namespace

Linear::Linear(ParameterGroup& group, int64_t in_features, const std::vector<LinearPart>& parts, bool bias,
               double init_std, const Hold& hold) {
  std::vector<ParameterSpec> weights, biases;
  for (const LinearPart& part : parts) {
    weights.push_back(hold(
        {.name = part.name + ".weight", .shape = {part.out_features, in_features}, .init_std = init_std}));
    const std::vector<int64_t> shape = weights.back().local_shape();
    out_ += shape[0];
    in_ = shape[1];
    if (bias) biases.push_back(hold(bias_of(part)));
  }
  adapter_ = Adapter::declare(group, weights);
  weight_ = &group.add(std::move(weights));
  weight_->grad_by_products = true;
  if (group.is_in_fp8()) multiply_in_fp8(parts);
  weight_->grad_in_fp8 = group.is_grad_in_fp8();
  if (!biases.empty()) bias_ = &group.add(std::move(biases));
}

// The hardware takes no other sizes.
void Linear::multiply_in_fp8(const std::vector<LinearPart>& parts) {
  constexpr int64_t unit = 16;
  weight_->in_fp8 = true;
  if (in_ % unit == 0 && out_ % unit == 0) return;
  throw UsageError(fmt::format(
      "{}.weight is {} x {} on each rank{}; both must be multiples of {} in FP8. Change the model's "
      "widths or distributed.tp, or set train.fp8 = \"off\"",
      parts.front().name, out_, in_, parts.size() > 1 ? " with what is stacked on it" : "", unit));
}

// y = x w^T + bias, the rows of x in FP8 too.
void Linear::multiply(const at::Tensor& x, const Fp8Copy& w, const std::optional<at::Tensor>& bias,
                      at::Tensor& y) {
  at::Tensor values = at::empty(x.sizes(), x.options().dtype(at::kFloat8_e4m3fn));
  at::Tensor scales = at::empty({x.size(0)}, x.options().dtype(at::kFloat));
  kernels::quantize_rows(x, values, scales);
  kernels::fp8_linear(values, scales, w.values, w.scales, bias, y);
}

bool Linear::learns() const {
  return adapter_ || is_learning(weight_) || is_learning(bias_);
}

at::Tensor Linear::forward(const at::Tensor& x) const {
  at::Tensor y = at::empty({x.size(0), out_}, x.options());
  forward(x, y);
  return y;
}

void Linear::forward(const at::Tensor& x, at::Tensor y) const {
  const auto bias = bias_ == nullptr ? std::nullopt : std::optional(bias_->compute);
  if (weight_->in_fp8) {
    multiply(x, weight_->fp8_rows(), bias, y);
  } else {
    kernels::linear(x, weight_->compute, bias, y);
  }
  if (adapter_) adapter_->forward(x, y);
}

at::Tensor Linear::backward_input(const at::Tensor& dy) const {
  at::Tensor dx = at::empty({dy.size(0), in_}, dy.options());
  backward_input(dy, dx);
  return dx;
}

void Linear::backward_input(const at::Tensor& dy, at::Tensor dx) const {
  if (weight_->in_fp8) {
    multiply(dy, weight_->fp8_columns(), std::nullopt, dx);
  } else {
    kernels::matmul(dy, weight_->compute, dx);
  }
  if (adapter_) adapter_->backward_input(dy, dx);
}

void Linear::backward_weight(const at::Tensor& x, const at::Tensor& dy) {
  add_weight_gradient(*weight_, dy, x);
  if (bias_ != nullptr) add_bias_gradient(*bias_, dy);
  if (adapter_) adapter_->backward_weight(x, dy);
}

ColumnLinear::ColumnLinear(ParameterGroup& group, int64_t in_features, const std::vector<LinearPart>& parts,
                           bool bias, double init_std, std::shared_ptr<const TensorGroup> tp)
    : ColumnLinear({Linear(group, in_features, parts, bias, init_std, cut_along(tp->cut(), 0))}, tp) {}

ColumnLinear::ColumnLinear(std::vector<Linear> blocks, std::shared_ptr<const TensorGroup> tp)
    : blocks_(std::move(blocks)), tp_(std::move(tp)) {}

std::vector<at::Tensor> ColumnLinear::forward(const at::Tensor& x, int64_t rows) const {
  const at::Tensor all = tp_->enter(x, rows);
  std::vector<at::Tensor> y;
  for (const Linear& block : blocks_) y.push_back(block.forward(all));
  return y;
}

at::Tensor ColumnLinear::input_gradient(std::span<const at::Tensor> dy) const {
  at::Tensor dx = blocks_[0].backward_input(dy[0]);
  for (size_t i = 1; i < blocks_.size(); ++i) kernels::add(dx, blocks_[i].backward_input(dy[i]));
  return dx;
}

bool ColumnLinear::learns() const {
  return std::ranges::any_of(blocks_, &Linear::learns);
}

void ColumnLinear::accumulate(const at::Tensor& all, std::span<const at::Tensor> dy) {
  for (size_t i = 0; i < blocks_.size(); ++i) blocks_[i].backward_weight(all, dy[i]);
}

at::Tensor ColumnLinear::backward(at::Tensor x, std::vector<at::Tensor> dy, WeightGradQueue& queue) {
  const bool now = takes_at_once(*this, queue, *tp_);
  TensorGroup::Arriving all;
  if (now) all = tp_->begin_enter(x, dy[0].size(0));
  TensorGroup::Arriving dx = tp_->begin_leave(input_gradient(dy));
  if (now) {
    accumulate(all(), dy);
  } else {
    dy.insert(dy.begin(), std::move(x));
    queue.push(*this, std::move(dy));
  }
  return dx();
}

void ColumnLinear::backward_weight(std::span<const at::Tensor> operands) {
  accumulate(tp_->enter(operands[0], operands[1].size(0)), operands.subspan(1));
}

RowLinear::RowLinear(ParameterGroup& group, int64_t in_features, const LinearPart& part, bool bias,
                     double init_std, std::shared_ptr<const TensorGroup> tp)
    : tp_(std::move(tp)) {
  const TensorShard& cut = tp_->cut();
  linear_.emplace(group, in_features, std::vector{part}, bias && cut.alone(), init_std, cut_along(cut, 1));
  if (bias && !cut.alone()) bias_ = &group.add({cut.copied(bias_of(part))});
}

void RowLinear::add_bias(at::Tensor& y) const {
  if (bias_ != nullptr) kernels::add(y, bias_->compute);
}

at::Tensor RowLinear::forward(const at::Tensor& x) const {
  at::Tensor y = tp_->leave(linear_->forward(x));
  add_bias(y);
  return y;
}

at::Tensor RowLinear::backward(at::Tensor x, const at::Tensor& dy, WeightGradQueue& queue) {
  if (tp_->alone() && queue.mode() == WeightGradQueue::Mode::immediate) {
    queue.push(*this, {std::move(x), dy});
    return linear_->backward_input(dy);
  }
  if (!tp_->alone() && takes_at_once(*this, queue, *tp_)) {
    const at::Tensor all = tp_->enter(dy, x.size(0));
    accumulate(x, all, dy);
    x.reset();
    return linear_->backward_input(all);
  }
  at::Tensor all;
  at::Tensor dx = backward_input(dy, x.size(0), queue, all);
  backward_weight(std::move(x), dy, all, queue);
  return dx;
}

at::Tensor RowLinear::backward_input(const at::Tensor& dy, int64_t rows, const WeightGradQueue& queue,
                                     at::Tensor& all) const {
  const at::Tensor whole = tp_->enter(dy, rows);
  if (!tp_->alone() && takes_at_once(*this, queue, *tp_)) all = whole;
  return linear_->backward_input(whole);
}

void RowLinear::backward_weight(at::Tensor x, const at::Tensor& dy, const at::Tensor& all,
                                WeightGradQueue& queue) {
  if (all.defined()) {
    accumulate(x, all, dy);
  } else {
    queue.push(*this, {std::move(x), dy});
  }
}

bool RowLinear::learns() const {
  return linear_->learns() || is_learning(bias_);
}

void RowLinear::accumulate(const at::Tensor& x, const at::Tensor& all, const at::Tensor& dy) {
  linear_->backward_weight(x, all);
  if (bias_ != nullptr) add_bias_gradient(*bias_, dy);
}

void RowLinear::backward_weight(std::span<const at::Tensor> operands) {
  const at::Tensor& x = operands[0];
  const at::Tensor& dy = operands[1];
  accumulate(x, tp_->enter(dy, x.size(0)), dy);
}

}  // namespace pptrain::nn

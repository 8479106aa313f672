#include "core/nn/experts.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <utility>

#include "core/kernels/expert_kernels.h"
#include "core/nn/weight_grad_queue.h"

namespace pptrain::nn {
namespace {

Experts::Saved& own(FeedForward::Saved& saved) {
  return static_cast<Experts::Saved&>(saved);
}

at::Tensor gather(const at::Tensor& x, const at::Tensor& order, int64_t each) {
  at::Tensor rows = at::empty({order.size(0), x.size(1)}, x.options());
  kernels::gather_rows(x, order, each, rows);
  return rows;
}

}  // namespace

ExpertWeights::ExpertWeights(ParameterGroup& group, const std::string& name, ExpertRange range,
                             const std::vector<std::string>& parts, int64_t out, int64_t in, double init_std)
    : experts_(range.size()), out_(static_cast<int64_t>(parts.size()) * out), in_(in) {
  std::vector<ParameterSpec> specs;
  for (int64_t expert = range.begin; expert < range.end; ++expert) {
    for (const std::string& part : parts) {
      specs.push_back({.name = fmt::format("{}.{}.{}.weight", name, expert, part),
                       .shape = {out, in},
                       .init_std = init_std});
    }
  }
  weight_ = &group.add(std::move(specs));
  weight_->grad_by_products = true;
}

at::Tensor ExpertWeights::forward(const Rows& x, const ExpertExchange::Plan& plan) const {
  at::Tensor y = at::empty({plan.rows, out_}, x.x.options());
  kernels::grouped_linear(x.x, x.optional_order(), x.each, plan.ends, by_expert(weight_->compute), y);
  return y;
}

at::Tensor ExpertWeights::backward_input(const Rows& dy, const ExpertExchange::Plan& plan) const {
  at::Tensor dx = at::empty({plan.rows, in_}, dy.x.options());
  kernels::grouped_matmul(dy.x, dy.optional_order(), dy.each, plan.ends, by_expert(weight_->compute), dx);
  return dx;
}

void ExpertWeights::push(WeightGradQueue& queue, const Rows& dy, const Rows& x,
                         const ExpertExchange::Plan& plan) {
  each_ = std::max(dy.each, x.each);
  queue.push(*this, {dy.x, dy.order, x.x, x.order, plan.ends});
}

void ExpertWeights::backward_weight(std::span<const at::Tensor> operands) {
  const auto order = [&](size_t i) {
    return operands[i].defined() ? std::optional(operands[i]) : std::nullopt;
  };
  add_grouped_weight_gradient(*weight_, {operands[0], order(1)}, {operands[2], order(3)}, each_, operands[4]);
}

std::vector<at::Tensor> Experts::Saved::tensors() const {
  std::vector<at::Tensor> all = routing.tensors();
  all.insert(all.end(), {row_weights, x, received, gate_up, act});
  if (plan) all.push_back(plan->ends);
  return all;
}

Experts::Experts(ParameterGroup& group, ParameterGroup& experts, const std::string& name,
                 const ExpertsConfig& config, std::shared_ptr<const ExpertExchange> exchange)
    : chosen_(config.router.chosen),
      router_(group, name + ".router", config.router),
      gate_up_(experts, name + ".experts", exchange->own(config.router.experts), {"gate", "up"},
               config.intermediate, config.router.hidden, config.init_std),
      down_(experts, name + ".experts", exchange->own(config.router.experts), {"down"}, config.router.hidden,
            config.intermediate, config.init_std),
      exchange_(std::move(exchange)) {}

ExpertWeights::Rows Experts::send(const at::Tensor& x, const Saved& saved) const {
  if (exchange_->is_local()) return {.x = x, .order = saved.routing.order, .each = chosen_};
  return {.x = exchange_->dispatch(*saved.plan, gather(x, saved.routing.order, chosen_)), .order = {}};
}

ExpertWeights::Rows Experts::rows_of_x(const Saved& saved) const {
  if (exchange_->is_local()) return {.x = saved.x, .order = saved.routing.order, .each = chosen_};
  return {.x = saved.received, .order = {}};
}

void Experts::activate(const at::Tensor& x, const TokenInfo& tokens, FeedForward::Saved& saved) const {
  restore(x, tokens, saved);
  Saved& s = own(saved);
  s.act = at::empty({s.plan->rows, s.gate_up.size(1) / 2}, x.options());
  kernels::weighted_swiglu(s.gate_up, s.row_weights, s.act);
}

void Experts::restore(const at::Tensor& x, const TokenInfo& /*tokens*/, FeedForward::Saved& saved) const {
  Saved& s = own(saved);
  s.x = x;
  if (!s.plan) {
    s.routing = router_.forward(x);
    const at::Tensor& order = s.routing.order;
    s.plan = exchange_->plan(s.routing.ends, order.size(0));
    const at::Tensor weights = gather(s.routing.weights.view({-1, 1}), order, 1);
    s.row_weights = exchange_->dispatch(*s.plan, weights).view({-1});
  }
  if (!exchange_->is_local() && !s.received.defined()) s.received = send(x, s).x;
  if (!s.gate_up.defined()) s.gate_up = gate_up_.forward(rows_of_x(s), *s.plan);
}

at::Tensor Experts::project(const FeedForward::Saved& saved) const {
  const auto& s = static_cast<const Saved&>(saved);
  const at::Tensor rows = exchange_->combine(*s.plan, down_.forward({.x = s.act, .order = {}}, *s.plan));
  at::Tensor y = at::empty_like(s.x);
  kernels::sum_rows(rows, s.routing.place, std::nullopt, y);
  return y;
}

void Experts::drop(FeedForward::Saved& saved, Keep keep) const {
  Saved& s = own(saved);
  s.x.reset();
  s.act.reset();
  if (keep == Keep::products) return;
  s.received.reset();
  s.gate_up.reset();
}

at::Tensor Experts::return_weights(const at::Tensor& dweights, const Saved& saved) const {
  const at::Tensor rows = exchange_->combine(*saved.plan, dweights.view({-1, 1}));
  return gather(rows, saved.routing.place.view({-1}), 1).view({-1, chosen_});
}

// A token's result is the sum of its rows', whose weights are in the operand of the last product: the
// gradient of every row is the token's, and that of its weight comes with SwiGLU's. Where act was dropped,
// the same kernel gives it again in the memory of its gradient.
at::Tensor Experts::backward_input(FeedForward::Saved& saved, const at::Tensor& dy, const TokenInfo& tokens,
                                   WeightGradQueue& queue) {
  Saved& s = own(saved);
  const ExpertWeights::Rows drows = send(dy, s);
  const bool kept = s.act.defined();
  if (kept) down_.push(queue, drows, {.x = std::move(s.act), .order = {}}, *s.plan);
  at::Tensor d_gate_up = std::move(s.gate_up);
  at::Tensor dweights = at::empty({s.plan->rows}, s.row_weights.options());
  at::Tensor d_act = down_.backward_input(drows, *s.plan);
  kernels::weighted_swiglu_backward(d_act, d_gate_up, s.row_weights, d_gate_up, dweights,
                                    kept ? std::nullopt : std::optional(d_act));
  if (!kept) down_.push(queue, drows, {.x = d_act, .order = {}}, *s.plan);
  d_act.reset();
  const at::Tensor dx_rows =
      exchange_->combine(*s.plan, gate_up_.backward_input({.x = d_gate_up, .order = {}}, *s.plan));
  gate_up_.push(queue, {.x = std::move(d_gate_up), .order = {}}, rows_of_x(s), *s.plan);
  const at::Tensor residual =
      router_.backward_input(s.x, s.routing, return_weights(dweights, s), tokens, *exchange_, queue);
  at::Tensor dx = at::empty_like(s.x);
  kernels::sum_rows(dx_rows, s.routing.place, residual, dx);
  s = {};
  return dx;
}

}  // namespace pptrain::nn

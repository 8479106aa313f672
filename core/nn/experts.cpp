#include "core/nn/experts.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <utility>

#include "core/base/error.h"
#include "core/kernels/dry_run.h"
#include "core/kernels/expert_kernels.h"
#include "core/kernels/kernels.h"
#include "core/nn/weight_grad_queue.h"

namespace pptrain::nn {
namespace {

// Calls body(first row, rows in float32) for x in pieces, so that the whole of it is never there in float32.
template <class Body>
void for_pieces_in_float32(const at::Tensor& x, const Body& body) {
  constexpr int64_t kRows = 1024;
  if (x.scalar_type() == at::kFloat) return body(int64_t{0}, x);
  for (int64_t first = 0; first < x.size(0); first += kRows) {
    const at::Tensor piece = x.narrow(0, first, std::min(kRows, x.size(0) - first));
    const at::Tensor converted = piece.to(at::kFloat);
    kernels::record(kernels::moving(piece, converted));
    body(first, converted);
  }
}

// int64 [experts]: the rows of documents that chose each.
at::Tensor loads_of(const Router::Routing& routing, const at::Tensor& filling) {
  const at::Tensor& ends = routing.ends;
  if (filling.defined()) {
    const at::Tensor chosen = routing.chosen.to(at::kLong);
    const at::Tensor counted = filling.logical_not().to(at::kLong).unsqueeze(1).expand_as(chosen);
    return at::zeros_like(ends, at::kLong).scatter_add_(0, chosen.view({-1}), counted.reshape({-1}));
  }
  at::Tensor loads = ends.to(at::kLong);
  const int64_t rest = ends.size(0) - 1;
  loads.narrow(0, 1, rest).sub_(ends.narrow(0, 0, rest));
  return loads;
}

Experts::Saved& own_saved(FeedForward::Saved& saved) {
  return static_cast<Experts::Saved&>(saved);
}

at::Tensor gather(const at::Tensor& x, const at::Tensor& order, int64_t each) {
  at::Tensor rows = at::empty({order.size(0), x.size(1)}, x.options());
  kernels::gather_rows(x, order, each, rows);
  return rows;
}

}  // namespace

Router::Router(ParameterGroup& group, const std::string& name, const ExpertsConfig& config)
    : config_(config),
      weight_(&group.add({{.name = name + ".weight",
                           .shape = {config.experts, config.hidden},
                           .role = Role::router,
                           .init_std = config.init_std,
                           .copies = config.copies,
                           .counted = config.counted}})) {
  if (!config.balance_bias) return;
  bias_ = &group.add({{.name = name + ".bias",
                       .shape = {config.experts},
                       .role = Role::balance,
                       .copies = config.copies,
                       .counted = config.counted}});
}

Router::Routing Router::forward(const at::Tensor& x) const {
  const int64_t rows = x.size(0);
  const auto real = x.options().dtype(at::kFloat), whole = x.options().dtype(at::kInt);
  at::Tensor logits = at::empty({rows, config_.experts}, real);
  for_pieces_in_float32(x, [&](int64_t first, const at::Tensor& piece) {
    at::Tensor out = logits.narrow(0, first, piece.size(0));
    kernels::linear(piece, weight_->compute, std::nullopt, out);
  });
  Routing r{.probabilities = at::empty_like(logits),
            .logsumexp = at::empty({rows}, real),
            .chosen = at::empty({rows, config_.chosen}, whole),
            .weights = at::empty({rows, config_.chosen}, real),
            .ends = at::empty({config_.experts}, whole),
            .order = at::empty({rows * config_.chosen}, whole),
            .place = at::empty({rows, config_.chosen}, whole)};
  const auto bias = bias_ == nullptr ? std::nullopt : std::optional(bias_->compute);
  kernels::route(logits, bias, config_.normalise, r.probabilities, r.logsumexp, r.chosen, r.weights);
  kernels::group_rows(r.chosen, r.ends, r.order, r.place);
  return r;
}

// Of the balance loss, by each token's probability of each expert: coefficient * experts * f_e / tokens.
std::optional<at::Tensor> Router::slopes(const at::Tensor& loads, const TokenInfo& tokens,
                                         const ExpertExchange& exchange) const {
  if (config_.balance_loss == 0) return std::nullopt;
  at::Tensor global = loads.clone();
  exchange.sum_loads(global);
  const auto all = static_cast<double>(tokens.global_tokens);
  const double factor = config_.balance_loss * static_cast<double>(config_.experts) *
                        static_cast<double>(tokens.global_targets) / (all * all);
  return global.to(at::kDouble).mul_(factor).to(at::kFloat);
}

at::Tensor Router::backward_input(const at::Tensor& x, const Routing& routing, const at::Tensor& dweights,
                                  const TokenInfo& tokens, const ExpertExchange& exchange,
                                  WeightGradQueue& queue) {
  if ((config_.balance_loss != 0 || config_.z_loss != 0) && tokens.global_tokens < 1)
    throw Error("the losses of a router need the global microbatch's number of tokens");
  const at::Tensor loads = loads_of(routing, tokens.filling);
  loads_ = loads_.defined() ? loads_.add_(loads) : loads;
  // Its sign alone acts (optim/updates.h): of integers, whose sum over ranks does not depend on the order.
  if (bias_ != nullptr) bias_->grad.add_(loads.mul(config_.experts).sub_(loads.sum()).to(at::kFloat));
  const auto filling = tokens.filling.defined() ? std::optional(tokens.filling) : std::nullopt;
  const double z_slope = config_.z_loss == 0 ? 0
                                             : config_.z_loss * static_cast<double>(tokens.global_targets) /
                                                   static_cast<double>(tokens.global_tokens);
  at::Tensor dlogits = at::empty_like(routing.probabilities);
  kernels::route_backward(dweights, routing.probabilities, routing.logsumexp, routing.chosen,
                          slopes(loads, tokens, exchange), z_slope, filling, config_.normalise, dlogits);
  at::Tensor dx = at::empty({x.size(0), config_.hidden}, dlogits.options());
  kernels::matmul(dlogits, weight_->compute, dx);
  queue.push(*this, {x, std::move(dlogits)});
  return dx;
}

void Router::backward_weight(std::span<const at::Tensor> operands) {
  for_pieces_in_float32(operands[0], [&](int64_t first, const at::Tensor& piece) {
    kernels::accumulate_weight_gradient(operands[1].narrow(0, first, piece.size(0)), piece, weight_->grad);
  });
}

at::Tensor Router::take_loads() {
  return std::exchange(loads_, at::Tensor());
}

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

at::Tensor ExpertWeights::forward(const GroupedRows& x, const ExpertExchange::Plan& plan) const {
  at::Tensor y = at::empty({plan.rows, out_}, x.x.options());
  kernels::grouped_linear(x.x, x.optional_order(), x.each, plan.ends, by_expert(weight_->compute), y);
  return y;
}

at::Tensor ExpertWeights::backward_input(const GroupedRows& dy, const ExpertExchange::Plan& plan) const {
  at::Tensor dx = at::empty({plan.rows, in_}, dy.x.options());
  kernels::grouped_matmul(dy.x, dy.optional_order(), dy.each, plan.ends, by_expert(weight_->compute), dx);
  return dx;
}

void ExpertWeights::push(WeightGradQueue& queue, const GroupedRows& dy, const GroupedRows& x,
                         const ExpertExchange::Plan& plan) {
  each_ = std::max(dy.each, x.each);
  queue.push(*this, {dy.x, dy.order, x.x, x.order, plan.ends});
}

void ExpertWeights::backward_weight(std::span<const at::Tensor> operands) {
  const auto rows = [&](size_t i) {
    return GroupedRows{.x = operands[i], .order = operands[i + 1], .each = each_};
  };
  add_grouped_weight_gradient(*weight_, rows(0), rows(2), operands[4]);
}

std::vector<at::Tensor> Experts::Saved::tensors() const {
  std::vector<at::Tensor> all = routing.tensors();
  all.insert(all.end(), {row_weights, x, received, gate_up, act});
  if (plan) all.push_back(plan->ends);
  return all;
}

Experts::Experts(ParameterGroup& group, ParameterGroup& experts, const std::string& name,
                 const ExpertsConfig& config, std::shared_ptr<const ExpertExchange> exchange)
    : chosen_(config.chosen),
      router_(group, name + ".router", config),
      gate_up_(experts, name + ".experts", exchange->own(config.experts), {"gate", "up"}, config.intermediate,
               config.hidden, config.init_std),
      down_(experts, name + ".experts", exchange->own(config.experts), {"down"}, config.hidden,
            config.intermediate, config.init_std),
      exchange_(std::move(exchange)) {}

GroupedRows Experts::send(const at::Tensor& x, const Saved& saved) const {
  if (exchange_->is_local()) return {.x = x, .order = saved.routing.order, .each = chosen_};
  return {.x = exchange_->dispatch(*saved.plan, gather(x, saved.routing.order, chosen_)), .order = {}};
}

GroupedRows Experts::rows_of_x(const Saved& saved) const {
  if (exchange_->is_local()) return {.x = saved.x, .order = saved.routing.order, .each = chosen_};
  return {.x = saved.received, .order = {}};
}

void Experts::activate(const at::Tensor& x, const TokenInfo& tokens, FeedForward::Saved& saved) const {
  restore(x, tokens, saved);
  Saved& s = own_saved(saved);
  s.act = at::empty({s.plan->rows, s.gate_up.size(1) / 2}, x.options());
  kernels::weighted_swiglu(s.gate_up, s.row_weights, s.act);
}

void Experts::restore(const at::Tensor& x, const TokenInfo& /*tokens*/, FeedForward::Saved& saved) const {
  Saved& s = own_saved(saved);
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
  Saved& s = own_saved(saved);
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
  Saved& s = own_saved(saved);
  const GroupedRows drows = send(dy, s);
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

#include "core/nn/router.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <utility>

#include "core/base/error.h"
#include "core/kernels/dry_run.h"
#include "core/kernels/expert_kernels.h"
#include "core/kernels/kernels.h"

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

}  // namespace

Router::Router(ParameterGroup& group, const std::string& name, const RouterConfig& config)
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
                       .init = Init::zeros,
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
  // Its sign alone acts (optim/balance.h): of integers, whose sum over ranks does not depend on the order.
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

}  // namespace pptrain::nn

#include "core/nn/experts.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/repeat_interleave.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/zeros_like.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "core/base/error.h"
#include "core/kernels/dry_run.h"
#include "core/kernels/expert_kernels.h"
#include "core/kernels/kernels.h"
#include "core/nn/weight_grad_queue.h"

namespace pptrain::nn {
namespace {

// `<name>.<expert>.<part>` plus like.name for each part of each of this rank's experts; all else as in
// `like`.
std::vector<ParameterSpec> specs_of_experts(const std::string& name, int64_t experts, const TensorShard& cut,
                                            const std::vector<std::string>& parts,
                                            const ParameterSpec& like) {
  std::vector<ParameterSpec> specs;
  const int64_t first = cut.begin(experts, cut.rank);
  for (int64_t expert = first; expert < first + cut.count(experts); ++expert) {
    for (const std::string& part : parts) {
      specs.push_back(like);
      specs.back().name = fmt::format("{}.{}.{}{}", name, expert, part, like.name);
    }
  }
  return specs;
}

}  // namespace

// Which experts each token goes to, and with which weights (Shazeer et al., arXiv 1701.06538): by a softmax
// over all experts before the choice, as in Qwen3 and Mixtral, or by sigmoids and groups of experts
// (DeepSeek-V3, arXiv 2412.19437). Computes in float32 under every compute type.
class Router final : public HasWeightGradient {
 public:
  // What was decided for a microbatch; names and shapes as in kernels/expert_kernels.h.
  struct Routing {
    at::Tensor probabilities, logsumexp, chosen, weights;
    at::Tensor ends, order, place;
    std::vector<at::Tensor> tensors() const {
      return {probabilities, logsumexp, chosen, weights, ends, order, place};
    }
  };

  // Declares `<name>.weight` [experts, hidden]; with balance_bias `<name>.bias` [experts], with a limit
  // `<name>.logits.bias` [experts]. Throws Error for groups that do not divide the experts, and for losses of
  // sigmoids, which have none.
  Router(ParameterGroup& group, const std::string& name, const ExpertsConfig& config);

  Routing forward(const at::Tensor& x, const TokenInfo& tokens);  // T [rows, hidden]

  // dweights: float32 [rows, chosen], gradient of the weights -> float32 [rows, hidden], the gradient of x
  // through it and through the router's losses. Counts the microbatch's loads.
  at::Tensor backward_input(const at::Tensor& x, const Routing& routing, const at::Tensor& dweights,
                            const TokenInfo& tokens, const ExpertExchange& exchange, WeightGradQueue& queue);
  void backward_weight(std::span<const at::Tensor> operands) override;  // x, dlogits
  bool learns() const override { return is_learning(weight_) || is_learning(logits_bias_); }

  at::Tensor take_loads() { return std::exchange(loads_, at::Tensor()); }  // as Experts::take_loads

 private:
  // Replaces what kernels::route has chosen, if the scores are sigmoids or the experts lie in groups.
  void choose(const at::Tensor& logits, Routing& routing) const;
  // Sums `loads`, this rank's, over all ranks, and over all slices of the list if it comes in slices.
  at::Tensor global_loads(const at::Tensor& loads, const TokenInfo& tokens, const ExpertExchange& exchange);
  // `slopes`: of the balance loss, if there is one.
  at::Tensor logits_gradient(const at::Tensor& dweights, const Routing& routing, const TokenInfo& tokens,
                             const std::optional<at::Tensor>& slopes) const;
  at::Tensor slopes_of(const at::Tensor& global_loads, const TokenInfo& tokens) const;

  ExpertsConfig config_;
  Weight* weight_;
  Weight* bias_ = nullptr;  // for the choice alone
  Weight* logits_bias_ = nullptr;
  at::Tensor loads_;
  // With a balance loss, for each list in slices, by its number: this rank's loads of the slices that went
  // forward. From the list's first backward pass (of its last slice) to its last one: all ranks' loads.
  std::map<int, at::Tensor> list_loads_;
};

// The weights [out, in] of this rank's experts, side by side, so that one grouped GEMM serves them all.
class ExpertWeights final : public HasWeightGradient {
 public:
  // One expert's `parts` ("gate", "up"), stacked, are one of its matrices: declares
  // `<name>.<expert>.<part>.weight` [out, in] for each of this rank's experts.
  ExpertWeights(ParameterGroup& group, const std::string& name, int64_t experts, const TensorShard& cut,
                const std::vector<std::string>& parts, int64_t out, int64_t in, double init_std)
      : experts_(cut.count(experts)), out_(static_cast<int64_t>(parts.size()) * out), in_(in) {
    const ParameterSpec like{.name = ".weight", .shape = {out, in}, .init_std = init_std};
    weight_ = &group.add(specs_of_experts(name, experts, cut, parts, like));
    weight_->grad_by_products = true;
  }

  at::Tensor forward(const GroupedRows& x, const ExpertExchange::Plan& plan) const;  // T [plan.rows, out]
  at::Tensor backward_input(const GroupedRows& dy,
                            const ExpertExchange::Plan& plan) const;  // T [plan.rows, in]
  // Adds the gradient of dy^T x, now or later.
  void push(WeightGradQueue& queue, const GroupedRows& dy, const GroupedRows& x,
            const ExpertExchange::Plan& plan);
  void backward_weight(std::span<const at::Tensor> operands) override;
  bool learns() const override { return !weight_->frozen(); }

 private:
  at::Tensor by_expert(const at::Tensor& weight) const { return weight.view({experts_, out_, in_}); }

  int64_t experts_, out_, in_;
  int64_t each_ = 1;  // of every order that is pushed
  Weight* weight_;
};

// Biases [out] of this rank's experts, weighted like the rows that they are added to.
class ExpertBiases final : public HasWeightGradient {
 public:
  // Declares `<name>.<expert>.<part>.bias` [out], as ExpertWeights does.
  ExpertBiases(ParameterGroup& group, const std::string& name, int64_t experts, const TensorShard& cut,
               const std::vector<std::string>& parts, int64_t out)
      : experts_(cut.count(experts)), out_(static_cast<int64_t>(parts.size()) * out) {
    const ParameterSpec like{.name = ".bias", .shape = {out}, .role = Role::bias};
    bias_ = &group.add(specs_of_experts(name, experts, cut, parts, like));
  }

  // rows: T [plan.rows, out], to each of which its expert's bias is added, times its weight (float32
  // [plan.rows], or undefined: 1).
  void add(at::Tensor& rows, const at::Tensor& weights, const ExpertExchange::Plan& plan) const;
  // float32 [plan.rows]: the gradient of the rows' weights through the biases.
  at::Tensor weights_gradient(const GroupedRows& dy, const ExpertExchange::Plan& plan) const;
  // Adds the biases' gradient of dy, now or later.
  void push(WeightGradQueue& queue, const GroupedRows& dy, const at::Tensor& weights,
            const ExpertExchange::Plan& plan);
  void backward_weight(std::span<const at::Tensor> operands) override;
  bool learns() const override { return !bias_->frozen(); }

 private:
  at::Tensor of_rows(const ExpertExchange::Plan& plan, const at::Tensor& like) const;

  int64_t experts_, out_;
  int64_t each_ = 1;  // of every order that is pushed
  Weight* bias_;
};

struct Experts::Saved final : FeedForward::Saved {
  // Decided in the forward pass: kept when the other tensors are dropped.
  Router::Routing routing;
  std::unique_ptr<const ExpertExchange::Plan> plan;
  at::Tensor row_weights;  // float32 [plan.rows]

  at::Tensor x;         // T [rows, hidden]
  at::Tensor received;  // T [plan.rows, hidden], if other ranks' rows are among them
  at::Tensor gate_up;   // T [plan.rows, 2 * intermediate]
  at::Tensor act;       // T [plan.rows, intermediate], weighted
  std::vector<at::Tensor> tensors() const override;
};

struct SharedExperts::Saved final : FeedForward::Saved {
  std::unique_ptr<FeedForward::Saved> experts, shared;
  at::Tensor x;     // T [share, hidden], with a gate, as the two below
  at::Tensor out;   // T [share, hidden], of the dense part: never dropped
  at::Tensor gate;  // float32 [share, 1]
  std::vector<at::Tensor> tensors() const override;
};

namespace {

// Calls body(first row, rows in float32) for x in chunks, so that x never exists as a whole in float32.
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

// float32 [rows, out] of x: T [rows, in], and a weight and a bias that compute in float32.
at::Tensor logits_of(const at::Tensor& x, const Weight& weight, const Weight* bias = nullptr) {
  at::Tensor logits = at::empty({x.size(0), weight.compute.size(0)}, x.options().dtype(at::kFloat));
  for_pieces_in_float32(x, [&](int64_t first, const at::Tensor& piece) {
    at::Tensor out = logits.narrow(0, first, piece.size(0));
    kernels::linear(piece, weight.compute, std::nullopt, out);
  });
  if (bias != nullptr) logits.add_(bias->compute);
  return logits;
}

void add_weight_gradient(const at::Tensor& x, const at::Tensor& dlogits, Weight& weight) {
  if (weight.frozen()) return;
  for_pieces_in_float32(x, [&](int64_t first, const at::Tensor& piece) {
    kernels::accumulate_weight_gradient(dlogits.narrow(0, first, piece.size(0)), piece, weight.grad);
  });
}

// int64 [experts]: the rows of each.
at::Tensor rows_of_experts(const at::Tensor& ends) {
  at::Tensor rows = ends.to(at::kLong);
  const int64_t rest = ends.size(0) - 1;
  rows.narrow(0, 1, rest).sub_(ends.narrow(0, 0, rest));
  return rows;
}

// int64 [experts]: the rows of documents that chose each.
at::Tensor loads_of(const Router::Routing& routing, const at::Tensor& filling) {
  if (!filling.defined()) return rows_of_experts(routing.ends);
  const at::Tensor chosen = routing.chosen.to(at::kLong);
  const at::Tensor counted = filling.logical_not().to(at::kLong).unsqueeze(1).expand_as(chosen);
  return at::zeros_like(routing.ends, at::kLong).scatter_add_(0, chosen.view({-1}), counted.reshape({-1}));
}

// The indices of the `count` highest scores of each row, the highest first, of equal ones the lower index:
// int64 [rows, count].
at::Tensor highest(const at::Tensor& scores, int64_t count) {
  return std::get<1>(scores.sort(/*stable=*/true, -1, /*descending=*/true)).narrow(-1, 0, count);
}

// scores: float32 [rows, experts]. Experts outside of each row's best groups become -infinity.
at::Tensor within_groups(const at::Tensor& scores, const ExpertsConfig& c) {
  const at::Tensor grouped = scores.view({scores.size(0), c.groups, -1});
  const int64_t best = c.sigmoid ? std::min<int64_t>(2, grouped.size(2)) : 1;
  const at::Tensor of_groups = std::get<0>(grouped.sort(-1, /*descending=*/true)).narrow(-1, 0, best).sum(-1);
  const at::Tensor left_out = at::zeros_like(of_groups, at::kBool)
                                  .fill_(true)
                                  .scatter_(1, highest(of_groups, c.chosen_groups), false);
  return grouped.masked_fill(left_out.unsqueeze(-1), -std::numeric_limits<double>::infinity())
      .view(scores.sizes());
}

// Added to a sum of sigmoids before weights are divided by it, as in DeepSeek-V3.
constexpr double kNoZero = 1e-20;

// dweights: float32 [rows, chosen], of weights before their scale -> float32 [rows, experts], of the logits.
at::Tensor sigmoid_gradient(const at::Tensor& dweights, const Router::Routing& routing, bool normalise) {
  const at::Tensor chosen = routing.chosen.to(at::kLong);
  const at::Tensor p = routing.probabilities.gather(1, chosen);
  at::Tensor dp = dweights;
  if (normalise) {
    const at::Tensor sum = p.sum(-1, true).add_(kNoZero);
    dp = dp.sub(dp.mul(p).sum(-1, true).div_(sum)).div_(sum);
  }
  at::Tensor dlogits = at::zeros_like(routing.probabilities);
  dlogits.scatter_(1, chosen, dp.mul(p).mul_(p.neg().add_(1)));
  kernels::record(kernels::moving(dweights, routing.probabilities, dlogits));
  return dlogits;
}

at::Tensor gather(const at::Tensor& x, const at::Tensor& order, int64_t each) {
  at::Tensor rows = at::empty({order.size(0), x.size(1)}, x.options());
  kernels::gather_rows(x, order, each, rows);
  return rows;
}

// int64 [rows]: the expert of each row in expert order, on the device of `like`.
at::Tensor expert_of_rows(const at::Tensor& ends, int64_t rows, const at::Tensor& like) {
  return at::repeat_interleave(rows_of_experts(ends), std::optional<int64_t>(rows)).to(like.device());
}

at::Tensor in_order(const GroupedRows& rows) {
  return rows.order.defined() ? gather(rows.x, rows.order, rows.each) : rows.x;
}

constexpr double kSlope = 1.702;  // of gpt-oss's sigmoid

// gate * sigmoid(1.702 gate) * (up + 1) of clamped values, from gate_up: T [rows, 2 * dim].
struct ClampedGlu {
  ClampedGlu(const at::Tensor& gate_up, double limit)
      : gate(gate_up.narrow(1, 0, gate_up.size(1) / 2).to(at::kFloat)),
        up(gate_up.narrow(1, gate_up.size(1) / 2, gate_up.size(1) / 2).to(at::kFloat)),
        gate_inside(gate.le(limit)),
        up_inside(up.abs().le(limit)) {
    gate = gate.clamp_max(limit);
    up = up.clamp(-limit, limit).add_(1);
    sigmoid = gate.mul(kSlope).sigmoid_();
  }
  at::Tensor value() const { return gate.mul(sigmoid).mul_(up); }

  at::Tensor gate, up, gate_inside, up_inside, sigmoid;  // float32 [rows, dim]
};

// As kernels::weighted_swiglu.
void weighted_clamped_glu(const at::Tensor& gate_up, const at::Tensor& weights, double limit, at::Tensor& y) {
  if (!y.is_meta()) y.copy_(ClampedGlu(gate_up, limit).value().mul_(weights.unsqueeze(1)));
  kernels::record(kernels::moving(gate_up, weights, y));
}

// As kernels::weighted_swiglu_backward.
void weighted_clamped_glu_backward(const at::Tensor& dy, at::Tensor& gate_up, const at::Tensor& weights,
                                   double limit, at::Tensor& dweights, const std::optional<at::Tensor>& y) {
  if (gate_up.is_meta()) return kernels::record(kernels::moving(dy, gate_up, gate_up, weights, dweights));
  const ClampedGlu glu(gate_up, limit);
  const at::Tensor value = glu.value();
  dweights.copy_(dy.mul(value).sum(-1));
  const at::Tensor scaled = dy.mul(weights.unsqueeze(1));
  const at::Tensor dgate = glu.sigmoid.neg().add_(1).mul_(glu.gate).mul_(kSlope).add_(1).mul_(glu.sigmoid);
  const int64_t dim = value.size(1);
  gate_up.narrow(1, 0, dim).copy_(dgate.mul_(glu.up).mul_(scaled).mul_(glu.gate_inside));
  gate_up.narrow(1, dim, dim).copy_(glu.gate.mul(glu.sigmoid).mul_(scaled).mul_(glu.up_inside));
  if (y) y->copy_(value.mul(weights.unsqueeze(1)));
  kernels::record(kernels::moving(dy, gate_up, gate_up, weights, dweights));
}

}  // namespace

Router::Router(ParameterGroup& group, const std::string& name, const ExpertsConfig& config)
    : config_(config),
      weight_(&group.add({config.rows.copied({.name = name + ".weight",
                                              .shape = {config.experts, config.hidden},
                                              .role = Role::router,
                                              .init_std = config.init_std})})) {
  if (config.groups < 1 || config.experts % config.groups != 0 || config.chosen_groups < 1 ||
      config.chosen_groups > config.groups ||
      config.chosen > config.experts / config.groups * config.chosen_groups) {
    throw Error(fmt::format("{}: {} of {} experts cannot be chosen in {} of {} equal groups", name,
                            config.chosen, config.experts, config.chosen_groups, config.groups));
  }
  if (config.sigmoid && (config.balance_loss != 0 || config.z_loss != 0))
    throw Error(
        fmt::format("{}: the router's losses are those of a softmax, and its scores are sigmoids", name));
  const auto add = [&](const char* what, Role role) {
    return &group.add({config.rows.copied({.name = name + what, .shape = {config.experts}, .role = role})});
  };
  if (config.balance_bias) bias_ = add(".bias", Role::balance);
  if (config.limit != 0) logits_bias_ = add(".logits.bias", Role::bias);
}

Router::Routing Router::forward(const at::Tensor& x, const TokenInfo& tokens) {
  const int64_t rows = x.size(0);
  const auto real = x.options().dtype(at::kFloat), whole = x.options().dtype(at::kInt);
  const at::Tensor logits = logits_of(x, *weight_, logits_bias_);
  Routing r{.probabilities = at::empty_like(logits),
            .logsumexp = at::empty({rows}, real),
            .chosen = at::empty({rows, config_.chosen}, whole),
            .weights = at::empty({rows, config_.chosen}, real),
            .ends = at::empty({config_.experts}, whole),
            .order = at::empty({rows * config_.chosen}, whole),
            .place = at::empty({rows, config_.chosen}, whole)};
  const auto bias = bias_ == nullptr ? std::nullopt : std::optional(bias_->compute);
  kernels::route(logits, bias, config_.normalise, r.probabilities, r.logsumexp, r.chosen, r.weights);
  if (config_.sigmoid || config_.groups > 1) choose(logits, r);
  if (config_.scale != 1) r.weights.mul_(config_.scale);
  kernels::group_rows(r.chosen, r.ends, r.order, r.place);
  if (config_.balance_loss != 0 && tokens.context && tokens.context->of_slices()) {
    const at::Tensor loads = loads_of(r, tokens.filling);
    at::Tensor& list = list_loads_[tokens.context->list];
    list = tokens.context->part == 0 ? loads : list.add(loads);
  }
  return r;
}

void Router::choose(const at::Tensor& logits, Routing& routing) const {
  if (config_.sigmoid) at::sigmoid_out(routing.probabilities, logits);
  at::Tensor scores = routing.probabilities;
  if (bias_ != nullptr) scores = scores.add(bias_->compute);
  if (config_.groups > 1) scores = within_groups(scores, config_);
  const at::Tensor chosen = highest(scores, config_.chosen);
  routing.chosen.copy_(chosen);
  routing.weights = routing.probabilities.gather(1, chosen);
  if (config_.normalise) routing.weights.div_(routing.weights.sum(-1, true).add_(kNoZero));
  kernels::record(kernels::moving(logits, scores, routing.probabilities, routing.weights));
}

at::Tensor Router::global_loads(const at::Tensor& loads, const TokenInfo& tokens,
                                const ExpertExchange& exchange) {
  if (!tokens.context || !tokens.context->of_slices()) {
    at::Tensor global = loads.clone();
    exchange.sum_loads(global);
    return global;
  }
  const tokens::ContextSplit& slices = *tokens.context;
  at::Tensor& list = list_loads_.at(slices.list);
  if (slices.part == slices.parts() - 1) exchange.sum_loads(list);
  return slices.part > 0 ? list : list_loads_.extract(slices.list).mapped();
}

// Slopes of the balance loss, by each token's probability of each expert: coefficient * experts * f_e /
// tokens.
at::Tensor Router::slopes_of(const at::Tensor& global_loads, const TokenInfo& tokens) const {
  const auto all = static_cast<double>(tokens.global_tokens);
  const double factor = config_.balance_loss * static_cast<double>(config_.experts) *
                        static_cast<double>(tokens.global_targets) / (all * all);
  return global_loads.to(at::kDouble).mul_(factor).to(at::kFloat);
}

at::Tensor Router::backward_input(const at::Tensor& x, const Routing& routing, const at::Tensor& dweights,
                                  const TokenInfo& tokens, const ExpertExchange& exchange,
                                  WeightGradQueue& queue) {
  if ((config_.balance_loss != 0 || config_.z_loss != 0) && tokens.global_tokens < 1)
    throw Error("the losses of a router need the global microbatch's number of tokens");
  const at::Tensor loads = loads_of(routing, tokens.filling);
  loads_ = loads_.defined() ? loads_.add_(loads) : loads;
  // Only its sign acts (optim/optimizers.cpp). Loads are integers, so their sum over ranks does not depend on
  // the order.
  if (is_learning(bias_)) bias_->grad.add_(loads.mul(config_.experts).sub_(loads.sum()).to(at::kFloat));
  std::optional<at::Tensor> slopes;
  if (config_.balance_loss != 0) slopes = slopes_of(global_loads(loads, tokens, exchange), tokens);
  at::Tensor dlogits =
      logits_gradient(config_.scale == 1 ? dweights : dweights.mul(config_.scale), routing, tokens, slopes);
  at::Tensor dx = at::empty({x.size(0), config_.hidden}, dlogits.options());
  kernels::matmul(dlogits, weight_->compute, dx);
  queue.push(*this, {x, std::move(dlogits)});
  return dx;
}

at::Tensor Router::logits_gradient(const at::Tensor& dweights, const Routing& routing,
                                   const TokenInfo& tokens, const std::optional<at::Tensor>& slopes) const {
  if (config_.sigmoid) return sigmoid_gradient(dweights, routing, config_.normalise);
  const auto filling = tokens.filling.defined() ? std::optional(tokens.filling) : std::nullopt;
  const double z_slope = config_.z_loss == 0 ? 0
                                             : config_.z_loss * static_cast<double>(tokens.global_targets) /
                                                   static_cast<double>(tokens.global_tokens);
  at::Tensor dlogits = at::empty_like(routing.probabilities);
  kernels::route_backward(dweights, routing.probabilities, routing.logsumexp, routing.chosen, slopes, z_slope,
                          filling, config_.normalise, dlogits);
  return dlogits;
}

void Router::backward_weight(std::span<const at::Tensor> operands) {
  add_weight_gradient(operands[0], operands[1], *weight_);
  if (is_learning(logits_bias_)) logits_bias_->grad.add_(operands[1].sum(0));
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

at::Tensor ExpertBiases::of_rows(const ExpertExchange::Plan& plan, const at::Tensor& like) const {
  if (like.is_meta()) return at::empty({plan.rows, out_}, like.options());
  return bias_->compute.view({experts_, out_}).index_select(0, expert_of_rows(plan.ends, plan.rows, like));
}

void ExpertBiases::add(at::Tensor& rows, const at::Tensor& weights, const ExpertExchange::Plan& plan) const {
  const at::Tensor bias = of_rows(plan, rows);
  rows.add_(weights.defined() ? bias.mul(weights.unsqueeze(1)) : bias);
  kernels::record(kernels::moving(rows, rows, bias, bias));
}

at::Tensor ExpertBiases::weights_gradient(const GroupedRows& dy, const ExpertExchange::Plan& plan) const {
  const at::Tensor rows = in_order(dy), bias = of_rows(plan, rows);
  kernels::record(kernels::moving(rows, bias));
  return rows.mul(bias).sum(-1, /*keepdim=*/false, at::kFloat);
}

void ExpertBiases::push(WeightGradQueue& queue, const GroupedRows& dy, const at::Tensor& weights,
                        const ExpertExchange::Plan& plan) {
  each_ = dy.each;
  queue.push(*this, {dy.x, dy.order, weights, plan.ends});
}

void ExpertBiases::backward_weight(std::span<const at::Tensor> operands) {
  at::Tensor rows = in_order({.x = operands[0], .order = operands[1], .each = each_}).to(at::kFloat);
  if (operands[2].defined()) rows = rows.mul(operands[2].unsqueeze(1));
  if (!rows.is_meta())
    bias_->grad.view({experts_, out_}).index_add_(0, expert_of_rows(operands[3], rows.size(0), rows), rows);
  kernels::record(kernels::moving(operands[0], rows));
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
      limit_(config.limit),
      router_(std::make_unique<Router>(group, name + ".router", config)),
      exchange_(std::move(exchange)) {
  const std::string inside = name + ".experts";
  const std::vector<std::string> gate_up{"gate", "up"}, down{"down"};
  const auto weights = [&](const std::vector<std::string>& parts, int64_t out, int64_t in) {
    return std::make_unique<ExpertWeights>(experts, inside, config.experts, exchange_->cut(), parts, out, in,
                                           config.init_std);
  };
  gate_up_ = weights(gate_up, config.intermediate, config.hidden);
  down_ = weights(down, config.hidden, config.intermediate);
  if (limit_ == 0) return;
  const auto biases = [&](const std::vector<std::string>& parts, int64_t out) {
    return std::make_unique<ExpertBiases>(experts, inside, config.experts, exchange_->cut(), parts, out);
  };
  gate_up_bias_ = biases(gate_up, config.intermediate);
  down_bias_ = biases(down, config.hidden);
}

Experts::~Experts() = default;

at::Tensor Experts::take_loads() {
  return router_->take_loads();
}

GroupedRows Experts::send(const at::Tensor& x, const Saved& saved) const {
  if (exchange_->is_local()) return {.x = x, .order = saved.routing.order, .each = chosen_};
  return {.x = exchange_->dispatch(*saved.plan, gather(x, saved.routing.order, chosen_)), .order = {}};
}

GroupedRows Experts::rows_of_x(const Saved& saved) const {
  if (exchange_->is_local()) return {.x = saved.x, .order = saved.routing.order, .each = chosen_};
  return {.x = saved.received, .order = {}};
}

std::unique_ptr<FeedForward::Saved> Experts::activate(const at::Tensor& x, const TokenInfo& tokens) const {
  auto saved = std::make_unique<Saved>();
  restore(x, tokens, *saved);
  saved->act = at::empty({saved->plan->rows, saved->gate_up.size(1) / 2}, x.options());
  if (limit_ == 0) {
    kernels::weighted_swiglu(saved->gate_up, saved->row_weights, saved->act);
  } else {
    weighted_clamped_glu(saved->gate_up, saved->row_weights, limit_, saved->act);
  }
  return saved;
}

void Experts::restore(const at::Tensor& x, const TokenInfo& tokens, FeedForward::Saved& saved) const {
  auto& s = static_cast<Saved&>(saved);
  s.x = x;
  if (!s.plan) {
    s.routing = router_->forward(x, tokens);
    const at::Tensor& order = s.routing.order;
    s.plan = exchange_->plan(s.routing.ends, order.size(0));
    const at::Tensor weights = gather(s.routing.weights.view({-1, 1}), order, 1);
    s.row_weights = exchange_->dispatch(*s.plan, weights).view({-1});
  }
  if (!exchange_->is_local() && !s.received.defined()) s.received = send(x, s).x;
  if (s.gate_up.defined()) return;
  s.gate_up = gate_up_->forward(rows_of_x(s), *s.plan);
  if (gate_up_bias_) gate_up_bias_->add(s.gate_up, {}, *s.plan);
}

at::Tensor Experts::project(const FeedForward::Saved& saved) const {
  const auto& s = static_cast<const Saved&>(saved);
  at::Tensor rows = down_->forward({.x = s.act, .order = {}}, *s.plan);
  if (down_bias_) down_bias_->add(rows, s.row_weights, *s.plan);
  rows = exchange_->combine(*s.plan, std::move(rows));
  at::Tensor y = at::empty_like(s.x);
  kernels::sum_rows(rows, s.routing.place, std::nullopt, y);
  return y;
}

void Experts::drop(FeedForward::Saved& saved, Keep keep) const {
  auto& s = static_cast<Saved&>(saved);
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

// A token's result is the sum of its rows' results; the weights are already in the operand of the last GEMM.
// So the gradient of every row is the token's gradient, and the gradient of its weight comes with SwiGLU's.
// If act was dropped, the same kernel recomputes it in the memory of its gradient.
at::Tensor Experts::backward_input(FeedForward::Saved& saved, const at::Tensor& dy, const TokenInfo& tokens,
                                   WeightGradQueue& queue) {
  auto& s = static_cast<Saved&>(saved);
  const GroupedRows drows = send(dy, s);
  const bool kept = s.act.defined();
  if (kept) down_->push(queue, drows, {.x = std::move(s.act), .order = {}}, *s.plan);
  at::Tensor d_gate_up = std::move(s.gate_up);
  at::Tensor dweights = at::empty({s.plan->rows}, s.row_weights.options());
  at::Tensor d_act = down_->backward_input(drows, *s.plan);
  const auto act_again = kept ? std::nullopt : std::optional(d_act);
  if (limit_ == 0) {
    kernels::weighted_swiglu_backward(d_act, d_gate_up, s.row_weights, d_gate_up, dweights, act_again);
  } else {
    weighted_clamped_glu_backward(d_act, d_gate_up, s.row_weights, limit_, dweights, act_again);
    dweights.add_(down_bias_->weights_gradient(drows, *s.plan));
    down_bias_->push(queue, drows, s.row_weights, *s.plan);
    gate_up_bias_->push(queue, {.x = d_gate_up, .order = {}}, {}, *s.plan);
  }
  if (!kept) down_->push(queue, drows, {.x = d_act, .order = {}}, *s.plan);
  d_act.reset();
  const at::Tensor dx_rows =
      exchange_->combine(*s.plan, gate_up_->backward_input({.x = d_gate_up, .order = {}}, *s.plan));
  gate_up_->push(queue, {.x = std::move(d_gate_up), .order = {}}, rows_of_x(s), *s.plan);
  const at::Tensor residual =
      router_->backward_input(s.x, s.routing, return_weights(dweights, s), tokens, *exchange_, queue);
  at::Tensor dx = at::empty_like(s.x);
  kernels::sum_rows(dx_rows, s.routing.place, residual, dx);
  s = {};
  return dx;
}

std::vector<at::Tensor> SharedExperts::Saved::tensors() const {
  std::vector<at::Tensor> all = {x, out, gate};
  for (const FeedForward::Saved* part : {experts.get(), shared.get()}) {
    if (part == nullptr) continue;
    const std::vector<at::Tensor> inner = part->tensors();
    all.insert(all.end(), inner.begin(), inner.end());
  }
  return all;
}

SharedExperts::SharedExperts(ParameterGroup& group, ParameterGroup& experts, const std::string& name,
                             const ExpertsConfig& config, std::shared_ptr<const ExpertExchange> exchange,
                             std::shared_ptr<const TensorGroup> tp)
    : experts_(group, experts, name, config, std::move(exchange)),
      shared_(group, name + ".shared", config.hidden, config.shared, Activation::silu, /*gated=*/true,
              /*bias=*/false, config.init_std, config.init_std, std::move(tp)) {
  if (!config.gated_shared) return;
  gate_ = &group.add({config.rows.copied({.name = name + ".shared_gate.weight",
                                          .shape = {1, config.hidden},
                                          .role = Role::router,
                                          .init_std = config.init_std})});
}

std::unique_ptr<FeedForward::Saved> SharedExperts::activate(const at::Tensor& x,
                                                            const TokenInfo& tokens) const {
  auto saved = std::make_unique<Saved>();
  saved->experts = experts_.activate(x, tokens);
  saved->shared = shared_.activate(x, tokens);
  if (gate_ == nullptr) return saved;
  saved->x = x;
  saved->out = shared_.project(*saved->shared);
  saved->gate = logits_of(x, *gate_).sigmoid_();
  return saved;
}

void SharedExperts::restore(const at::Tensor& x, const TokenInfo& tokens, FeedForward::Saved& saved) const {
  auto& s = static_cast<Saved&>(saved);
  experts_.restore(x, tokens, *s.experts);
  shared_.restore(x, tokens, *s.shared);
  if (gate_ != nullptr) s.x = x;
}

at::Tensor SharedExperts::project(const FeedForward::Saved& saved) const {
  const auto& s = static_cast<const Saved&>(saved);
  at::Tensor y = experts_.project(*s.experts);
  const at::Tensor beside =
      gate_ == nullptr ? shared_.project(*s.shared) : s.out.mul(s.gate.to(s.out.scalar_type()));
  kernels::record(kernels::moving(y, beside, y));
  return y.add_(beside);
}

void SharedExperts::drop(FeedForward::Saved& saved, Keep keep) const {
  auto& s = static_cast<Saved&>(saved);
  experts_.drop(*s.experts, keep);
  shared_.drop(*s.shared, keep);
  s.x.reset();
}

at::Tensor SharedExperts::backward_input(FeedForward::Saved& saved, const at::Tensor& dy,
                                         const TokenInfo& tokens, WeightGradQueue& queue) {
  auto& s = static_cast<Saved&>(saved);
  at::Tensor dx = experts_.backward_input(*s.experts, dy, tokens, queue);
  const at::Tensor dout = gate_ == nullptr ? dy : dy.mul(s.gate.to(dy.scalar_type()));
  dx.add_(shared_.backward_input(*s.shared, dout, tokens, queue));
  if (gate_ != nullptr) {
    at::Tensor dlogits = at::empty_like(s.gate);
    for_pieces_in_float32(dy, [&](int64_t first, const at::Tensor& piece) {
      dlogits.narrow(0, first, piece.size(0))
          .copy_(piece.mul(s.out.narrow(0, first, piece.size(0))).sum(-1, /*keepdim=*/true));
    });
    dlogits.mul_(s.gate).mul_(s.gate.neg().add_(1));
    dx.add_(dlogits.mul(gate_->compute));
    kernels::record(kernels::moving(dy, s.out, dx, dx));
    queue.push(*this, {std::move(s.x), std::move(dlogits)});
  }
  s = {};
  return dx;
}

void SharedExperts::backward_weight(std::span<const at::Tensor> operands) {
  add_weight_gradient(operands[0], operands[1], *gate_);
}

}  // namespace pptrain::nn

// A small mixture of experts for tests: its groups, and the same function by LibTorch's autograd in float64.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "core/nn/experts.h"
#include "test/core/kernels/compare.h"
#include "test/support/ops.h"

namespace pptrain::test {

inline nn::ExpertsConfig small_experts(bool normalise = true) {
  return {.hidden = 24,
          .experts = 8,
          .chosen = 3,
          .intermediate = 20,
          .normalise = normalise,
          .init_std = 0.4,
          .balance_loss = 0.2,
          .z_loss = 0.05};
}

template <typename Layer>
struct ExpertLayerOf {
  explicit ExpertLayerOf(
      const nn::ExpertsConfig& config, at::ScalarType type = at::kFloat,
      std::shared_ptr<const nn::ExpertExchange> exchange = std::make_shared<nn::ExpertExchange>())
      : layer(group, experts, "mlp", config, std::move(exchange)) {
    for (nn::ParameterGroup* g : {&group, &experts}) {
      g->materialise(at::kCPU, type);
      g->initialise(9);
    }
  }
  nn::Slice* find(const std::string& name) {
    nn::Slice* found = group.find("mlp." + name);
    return found != nullptr ? found : experts.find("mlp." + name);
  }

  nn::ParameterGroup group, experts{"experts", /*of_experts=*/true};
  Layer layer;
};
using ExpertLayer = ExpertLayerOf<nn::Experts>;

// One microbatch's contribution to the loss through `dy`, and the router's own losses.
struct ExpertOracle {
  template <typename Layer>
  ExpertOracle(ExpertLayerOf<Layer>& from, const nn::ExpertsConfig& config) : config_(config) {
    for (nn::ParameterGroup* group : {&from.group, &from.experts}) {
      for (const nn::Slice* slice : group->slices()) weights[slice->spec.name] = leaf(slice->compute);
    }
    stored_ = weights.size() > 0 ? from.experts.slices().front()->compute.scalar_type() : stored_;
  }

  // x: float64 [tokens, hidden]. Also counts the tokens of each expert.
  at::Tensor forward(const at::Tensor& x) {
    const nn::ExpertsConfig& r = config_;
    logits = x.mm(weights.at("mlp.router.weight").t());
    if (r.limit != 0) logits = logits + weights.at("mlp.router.logits.bias");
    const bool sigmoid = r.sigmoid;
    probabilities = sigmoid ? at::sigmoid(logits) : at::softmax(logits, -1);
    const auto bias = weights.find("mlp.router.bias");
    at::Tensor scores = bias == weights.end() ? probabilities : probabilities + bias->second.detach();
    if (r.groups > 1) {
      const at::Tensor grouped = scores.view({scores.size(0), r.groups, -1});
      const at::Tensor best = std::get<0>(at::topk(grouped, sigmoid ? 2 : 1, -1)).sum(-1);
      const at::Tensor inside = at::zeros_like(best).scatter(
          1, std::get<1>(at::topk(best, r.chosen_groups, -1)), at::ones_like(best));
      scores = (grouped.detach() - 100 * (1 - inside.unsqueeze(-1))).view(scores.sizes());
    }
    chosen = std::get<1>(at::topk(scores, r.chosen));
    at::Tensor gates = probabilities.gather(1, chosen);
    if (r.normalise) gates = gates / gates.sum(-1, true);
    gates = gates * r.scale;
    at::Tensor y = shared(x);
    for (int64_t e = 0; e < r.experts; ++e) {
      const auto linear = [&](const at::Tensor& rows, const char* part) {
        const std::string name = "mlp.experts." + std::to_string(e) + "." + part;
        const at::Tensor out = rows.mm(weights.at(name + ".weight").t());
        return r.limit == 0 ? out : as_stored(as_stored(out) + weights.at(name + ".bias"));
      };
      const at::Tensor weight = (gates * chosen.eq(e)).sum(-1, true);
      y = y + weight * linear(activate(linear(x, "gate"), linear(x, "up")), "down");
    }
    return y;
  }

  // `x` with the values that the layer stores, so that a limit cuts the same ones; the gradient passes to
  // `x`.
  at::Tensor as_stored(const at::Tensor& x) const {
    return x + (x.detach().to(stored_).to(at::kDouble) - x.detach());
  }

  at::Tensor activate(const at::Tensor& gate, const at::Tensor& up) const {
    if (config_.limit == 0) return at::silu(gate) * up;
    const at::Tensor cut = at::clamp_max(gate, config_.limit);
    return cut * at::sigmoid(1.702 * cut) * (at::clamp(up, -config_.limit, config_.limit) + 1);
  }

  // The output that all tokens get in addition to their experts.
  at::Tensor shared(const at::Tensor& x) const {
    if (config_.shared == 0) return at::zeros_like(x);
    const auto product = [&](const at::Tensor& rows, const char* name) {
      return rows.mm(weights.at(std::string("mlp.shared") + name + ".weight").t());
    };
    const at::Tensor y = product(at::silu(product(x, ".gate")) * product(x, ".up"), ".down");
    return config_.gated_shared ? y * at::sigmoid(product(x, "_gate")) : y;
  }

  // The losses of experts.h, weighted by `targets`; only over the rows `own` if given.
  at::Tensor losses(int64_t targets, const at::Tensor& own = {}) const {
    const nn::ExpertsConfig& r = config_;
    const auto of_own = [&](const at::Tensor& rows) {
      return own.defined() ? rows.index_select(0, own) : rows;
    };
    const at::Tensor f = at::one_hot(of_own(chosen), r.experts).sum(1).to(at::kDouble).mean(0);
    const at::Tensor balance = (f * of_own(probabilities).mean(0)).sum() * r.experts;
    const at::Tensor z = at::logsumexp(of_own(logits), {-1}).square().mean();
    return (balance * r.balance_loss + z * r.z_loss) * targets;
  }

  std::map<std::string, at::Tensor> weights;
  at::Tensor logits, probabilities, chosen;

 private:
  nn::ExpertsConfig config_;
  at::ScalarType stored_ = at::kDouble;
};

inline nn::TokenInfo tokens_of(int64_t tokens, int64_t targets) {
  return {.positions = {},
          .segments = {},
          .ropes = {},
          .context = {},
          .filling = {},
          .global_tokens = tokens,
          .global_targets = targets};
}

}  // namespace pptrain::test

// A small mixture of experts for tests: its groups, and the same function by LibTorch's autograd in float64.
#pragma once

#include <ATen/Functions.h>

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "core/nn/experts.h"
#include "test/core/kernels/compare.h"

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

struct ExpertLayer {
  explicit ExpertLayer(
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
  nn::Experts layer;
};

// What one microbatch adds to the loss through `dy`, and by the router's own losses.
struct ExpertOracle {
  ExpertOracle(ExpertLayer& from, const nn::ExpertsConfig& config) : config_(config) {
    for (nn::ParameterGroup* group : {&from.group, &from.experts}) {
      for (const nn::Slice* slice : group->slices()) weights[slice->spec.name] = leaf(slice->compute);
    }
  }

  // x: float64 [tokens, hidden]. Also: how many tokens each expert gets.
  at::Tensor forward(const at::Tensor& x) {
    const nn::ExpertsConfig& r = config_;
    logits = x.mm(weights.at("mlp.router.weight").t());
    probabilities = at::softmax(logits, -1);
    const auto bias = weights.find("mlp.router.bias");
    const at::Tensor scores = bias == weights.end() ? probabilities : probabilities + bias->second.detach();
    chosen = std::get<1>(at::topk(scores, r.chosen));
    at::Tensor gates = probabilities.gather(1, chosen);
    if (r.normalise) gates = gates / gates.sum(-1, true);
    at::Tensor y = at::zeros_like(x);
    for (int64_t e = 0; e < r.experts; ++e) {
      const auto weight = [&](const char* part) {
        return weights.at("mlp.experts." + std::to_string(e) + "." + part + ".weight");
      };
      const at::Tensor gate = (gates * chosen.eq(e)).sum(-1, true);
      const at::Tensor inner = at::silu(x.mm(weight("gate").t())) * x.mm(weight("up").t());
      y = y + gate * inner.mm(weight("down").t());
    }
    return y;
  }

  // As experts.h says, weighted by `targets`; over the rows `own` alone, where given.
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

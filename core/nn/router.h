// The router of a mixture of experts: which experts each token goes to, and with which weights (Shazeer et
// al., arXiv 1701.06538; softmax over all experts before the choice, as in Qwen3 and Mixtral). Computes in
// float32 under every compute type.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/nn/expert_exchange.h"
#include "core/nn/parameter.h"
#include "core/nn/token_info.h"
#include "core/nn/weight_grad_queue.h"

namespace pptrain::nn {

// The losses of a router are means over the tokens of a global microbatch: of all ranks that see a part of
// it, and of documents alone: filling counts neither there nor in loads (TokenInfo::filling). They are
// weighted by its labels that count, as gradients of the token loss are, so that the division by the step's
// labels leaves the mean over microbatches.
struct RouterConfig {
  int64_t hidden = 0;
  int64_t experts = 0;
  int64_t chosen = 0;  // experts of each token
  bool normalise = false;
  double init_std = 0.02;
  // Of experts * sum over experts e of f_e P_e, where f_e is the number of the microbatch's tokens that chose
  // e, divided by its tokens, and P_e their mean probability of e (Fedus et al., arXiv 2101.03961, eq. 4;
  // with f summed over choices, as transformers takes it).
  double balance_loss = 0;
  double z_loss = 0;  // of the mean of squared logsumexp (Zoph et al., arXiv 2202.08906, eq. 5)
  // A bias on each expert's probability, for the choice alone, which balances loads without a loss (Wang et
  // al., arXiv 2408.15664).
  bool balance_bias = false;
  // Where tensor-parallel ranks share out the rows, each holds a copy of the router.
  Copies copies = Copies::one;
  bool counted = true;
};

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

  // Declares `<name>.weight` [experts, hidden] and, with balance_bias, `<name>.bias` [experts].
  Router(ParameterGroup& group, const std::string& name, const RouterConfig& config);

  Routing forward(const at::Tensor& x) const;  // T [rows, hidden]

  // dweights: float32 [rows, chosen], gradient of the weights -> float32 [rows, hidden], what x gets of it
  // and of the router's losses. Counts the microbatch's loads.
  at::Tensor backward_input(const at::Tensor& x, const Routing& routing, const at::Tensor& dweights,
                            const TokenInfo& tokens, const ExpertExchange& exchange, WeightGradQueue& queue);
  void backward_weight(std::span<const at::Tensor> operands) override;  // x, dlogits

  // Rows of documents that went to each expert in the backward passes since the last call, from this rank:
  // int64 [experts]; undefined where there were none.
  at::Tensor take_loads();

 private:
  std::optional<at::Tensor> slopes(const at::Tensor& loads, const TokenInfo& tokens,
                                   const ExpertExchange& exchange) const;

  RouterConfig config_;
  Weight* weight_;
  Weight* bias_ = nullptr;
  at::Tensor loads_;
};

}  // namespace pptrain::nn

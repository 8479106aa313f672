// A mixture of experts in the place of a feed-forward: each token goes through the few SwiGLUs that a router
// chooses for it, and their results are summed with the router's weights. No token is dropped, however uneven
// the choice.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "core/nn/feed_forward.h"
#include "core/nn/parameter.h"
#include "core/nn/tensor_group.h"
#include "core/nn/token_info.h"
#include "core/nn/weight_grad_queue.h"

namespace pptrain::nn {

// How rows reach the ranks that hold their experts, and how results come back. The base class is the
// identity: a rank holds all experts. Rows are in expert order (kernels/ expert_kernels.h). dispatch() and
// combine() move rows to and fro along one plan, so that each is the gradient of the other. All calls are
// collective, in the same order on every rank.
class ExpertExchange {
 public:
  // Which rows go where: decided once, in the forward pass, and followed by every pass of these rows.
  struct Plan {
    virtual ~Plan() = default;
    // int32 [this rank's experts]: ends of the rows that dispatch() gives. On the host, which must know the
    // sizes of the experts' GEMMs: so it waits for a GPU once a layer, in F.
    at::Tensor ends;
    int64_t rows = 0;  // how many these are
  };

  ExpertExchange() = default;
  // cut: which of a layer's experts each rank holds.
  explicit ExpertExchange(const TensorShard& cut) : cut_(cut) {}
  virtual ~ExpertExchange() = default;

  const TensorShard& cut() const { return cut_; }
  // dispatch() and combine() return their argument.
  bool is_local() const { return cut_.alone(); }

  // Plans `rows` rows of this rank in expert order; ends: int32 [experts].
  virtual std::unique_ptr<const Plan> plan(const at::Tensor& ends, int64_t rows) const {
    auto plan = std::make_unique<Plan>();
    plan->ends = ends.is_cuda() ? ends.cpu() : ends;
    plan->rows = rows;
    return plan;
  }

  // This rank's rows [rows, ...], in expert order -> the rows of this rank's experts [plan.rows, ...] from
  // all ranks, ordered by expert, rank and place there. combine() is the way back.
  virtual at::Tensor dispatch(const Plan& /*plan*/, at::Tensor rows) const { return rows; }
  virtual at::Tensor combine(const Plan& /*plan*/, at::Tensor rows) const { return rows; }

  // loads (int64 [experts]) become their sum over all ranks that see a part of the same global microbatch.
  virtual void sum_loads(at::Tensor& /*loads*/) const {}

 private:
  TensorShard cut_;
};

// The experts of one layer, and their router. Its losses are means over the tokens of a global microbatch: on
// all ranks that see a part of it, and over all its sequence slices. Only tokens of documents count, in
// losses and in loads; filling does not (TokenInfo::filling). Losses are weighted by the microbatch's valid
// tokens, like gradients of the token loss, so that the division by the step's valid tokens leaves the mean
// over microbatches.
struct ExpertsConfig {
  int64_t hidden = 0;
  int64_t experts = 0;
  int64_t chosen = 0;        // experts of each token
  int64_t intermediate = 0;  // of each expert
  bool sigmoid = false;      // an expert's score is 1 / (1 + exp(-logit)), not a softmax over all
  bool normalise = false;    // the chosen experts' scores are divided by their sum
  double scale = 1;          // multiplies the weights, after that
  // Experts lie in `groups` groups of equal size. A token chooses only among the experts of its
  // `chosen_groups` best groups. With softmax a group is as good as its best expert, with sigmoid as the sum
  // of its two best.
  int64_t groups = 1, chosen_groups = 1;
  // gpt-oss (arXiv 2508.10925): logits and experts have biases, and an expert's inner values are gate *
  // sigmoid(1.702 gate) * (up + 1), gate cut to at most `limit`, up to [-limit, limit]. 0: none of it.
  double limit = 0;
  int64_t shared = 0;         // inner width of a dense SwiGLU that every token passes in addition; 0: none
  bool gated_shared = false;  // its result is multiplied by a sigmoid of the token
  double init_std = 0.02;
  // Coefficient of experts * sum over experts e of f_e P_e (Fedus et al., arXiv 2101.03961, eq. 4). f_e is
  // the number of the microbatch's tokens that chose e, divided by its tokens, and P_e their mean probability
  // of e. As in transformers, f is summed over choices.
  double balance_loss = 0;
  double z_loss = 0;  // of the mean of squared logsumexp (Zoph et al., arXiv 2202.08906, eq. 5)
  // A bias on each expert's probability, only for the choice: it balances loads without a loss (Wang et al.,
  // arXiv 2408.15664).
  bool balance_bias = false;
  TensorShard rows = {};  // the tensor-parallel ranks that shard the rows; each holds a copy of the router
};

class Router;
class ExpertWeights;
class ExpertBiases;

class Experts final : public FeedForward {
 public:
  struct Saved;

  // Declares `<name>.router.*` in `group`, and `<name>.experts.E.{gate,up,down}.weight` (with a limit also
  // `.bias`) for each of this rank's experts in `experts`.
  Experts(ParameterGroup& group, ParameterGroup& experts, const std::string& name,
          const ExpertsConfig& config,
          std::shared_ptr<const ExpertExchange> exchange = std::make_shared<ExpertExchange>());
  ~Experts() override;

  std::unique_ptr<FeedForward::Saved> activate(const at::Tensor& x, const TokenInfo& tokens) const override;
  at::Tensor project(const FeedForward::Saved& saved) const override;
  void drop(FeedForward::Saved& saved, Keep keep) const override;
  void restore(const at::Tensor& x, const TokenInfo& tokens, FeedForward::Saved& saved) const override;
  at::Tensor backward_input(FeedForward::Saved& saved, const at::Tensor& dy, const TokenInfo& tokens,
                            WeightGradQueue& queue) override;
  at::Tensor take_loads() override;

 private:
  // Sends each token's row of T [rows, hidden] to the ranks of its experts, one copy for each expert.
  GroupedRows send(const at::Tensor& x, const Saved& saved) const;
  GroupedRows rows_of_x(const Saved& saved) const;  // the same of x, which were sent before
  // float32 [rows, chosen], of this rank's tokens, from float32 [plan.rows].
  at::Tensor return_weights(const at::Tensor& dweights, const Saved& saved) const;

  int64_t chosen_;
  double limit_;
  std::unique_ptr<Router> router_;
  std::unique_ptr<ExpertWeights> gate_up_, down_;
  std::unique_ptr<ExpertBiases> gate_up_bias_, down_bias_;  // null without a limit
  std::shared_ptr<const ExpertExchange> exchange_;
};

// Experts, and in addition a dense feed-forward that every token passes (DeepSeekMoE, arXiv 2401.06066). With
// `gated_shared` a sigmoid of the token multiplies its result, as in Qwen2-MoE.
class SharedExperts final : public FeedForward, public HasWeightGradient {
 public:
  struct Saved;

  // Declares what Experts does, `<name>.shared.{gate,up,down}.weight`, and `<name>.shared_gate.weight` [1,
  // hidden] with a gate. The ranks of `tp` shard the dense part's inner width.
  SharedExperts(ParameterGroup& group, ParameterGroup& experts, const std::string& name,
                const ExpertsConfig& config,
                std::shared_ptr<const ExpertExchange> exchange = std::make_shared<ExpertExchange>(),
                std::shared_ptr<const TensorGroup> tp = std::make_shared<TensorGroup>());

  std::unique_ptr<FeedForward::Saved> activate(const at::Tensor& x, const TokenInfo& tokens) const override;
  at::Tensor project(const FeedForward::Saved& saved) const override;
  void drop(FeedForward::Saved& saved, Keep keep) const override;
  void restore(const at::Tensor& x, const TokenInfo& tokens, FeedForward::Saved& saved) const override;
  at::Tensor backward_input(FeedForward::Saved& saved, const at::Tensor& dy, const TokenInfo& tokens,
                            WeightGradQueue& queue) override;
  void backward_weight(std::span<const at::Tensor> operands) override;  // x, gradient of the gate's logits
  bool learns() const override { return is_learning(gate_); }
  at::Tensor take_loads() override { return experts_.take_loads(); }

 private:
  Experts experts_;
  Mlp shared_;
  Weight* gate_ = nullptr;
};

}  // namespace pptrain::nn

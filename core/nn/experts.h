// A mixture of experts in the place of a feed-forward: each token goes through the few SwiGLUs that a router
// chooses for it, and their results are summed with the router's weights. No token is dropped, however uneven
// the choice.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/nn/feed_forward.h"
#include "core/nn/parameter.h"
#include "core/nn/token_info.h"
#include "core/nn/weight_grad_queue.h"

namespace pptrain::nn {

// The experts [begin, end) of a layer.
struct ExpertRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
};

// How rows reach the ranks that hold their experts, and how results come back. The base class is the
// identity: a rank holds all experts. Rows are in expert order (kernels/ expert_kernels.h). dispatch() and
// combine() move rows to and fro along one plan, so that each is the gradient of the other. All calls are
// collective, in the same order on every rank.
class ExpertExchange {
 public:
  // Which rows go where: decided once, in the forward pass, and followed by every pass of these rows.
  struct Plan {
    virtual ~Plan() = default;
    // int32 [this rank's experts], of the rows that dispatch() gives. On the host, which must know how large
    // the products of experts are: so it waits for a GPU once a layer, in F.
    at::Tensor ends;
    int64_t rows = 0;  // how many these are
  };

  virtual ~ExpertExchange() = default;

  // Of `experts` experts, those that this rank holds.
  virtual ExpertRange own(int64_t experts) const { return {.begin = 0, .end = experts}; }
  // dispatch() gives its argument, and combine() does.
  virtual bool is_local() const { return true; }

  // For `rows` rows of this rank in expert order; ends: int32 [experts].
  virtual std::unique_ptr<const Plan> plan(const at::Tensor& ends, int64_t rows) const {
    auto plan = std::make_unique<Plan>();
    plan->ends = ends.is_cuda() ? ends.cpu() : ends;
    plan->rows = rows;
    return plan;
  }

  // This rank's rows [rows, ...], in expert order -> the rows of this rank's experts [plan.rows, ...] from
  // all ranks, ordered by expert, rank and place there; and back.
  virtual at::Tensor dispatch(const Plan& /*plan*/, at::Tensor rows) const { return rows; }
  virtual at::Tensor combine(const Plan& /*plan*/, at::Tensor rows) const { return rows; }

  // loads (int64 [experts]) become their sum over all ranks that see a part of the same global microbatch.
  virtual void sum_loads(at::Tensor& /*loads*/) const {}
};

// What a router makes of logits: probabilities, or, of each expert by itself, 1 / (1 + exp(-logit)).
enum class Scores { softmax, sigmoid };

// The experts of one layer, and their router. Its losses are means over the tokens of a global microbatch: of
// all ranks that see a part of it, and of documents alone: filling counts neither there nor in loads
// (TokenInfo::filling). They are weighted by its labels that count, as gradients of the token loss are, so
// that the division by the step's labels leaves the mean over microbatches.
struct ExpertsConfig {
  int64_t hidden = 0;
  int64_t experts = 0;
  int64_t chosen = 0;        // experts of each token
  int64_t intermediate = 0;  // of each expert
  Scores scores = Scores::softmax;
  bool normalise = false;  // the chosen experts' scores are divided by their sum
  double scale = 1;        // multiplies the weights, after that
  // Experts lie in `groups` groups of equal size. A token chooses among those of its `chosen_groups` best
  // groups alone: with softmax a group is as good as its best expert, with sigmoid as its two best together.
  int64_t groups = 1, chosen_groups = 1;
  // gpt-oss (arXiv 2508.10925): logits and experts have biases, and an expert's inner values are gate *
  // sigmoid(1.702 gate) * (up + 1), gate cut to at most `limit`, up to [-limit, limit]. 0: none of it.
  double limit = 0;
  int64_t shared = 0;         // inner width of a dense SwiGLU that every token passes beside; 0: none
  bool gated_shared = false;  // its result is multiplied by a sigmoid of the token
  double init_std = 0.02;
  // Of experts * sum over experts e of f_e P_e, where f_e is the number of the microbatch's tokens that chose
  // e, divided by its tokens, and P_e their mean probability of e (Fedus et al., arXiv 2101.03961, eq. 4;
  // with f summed over choices, as transformers takes it).
  double balance_loss = 0;
  double z_loss = 0;  // of the mean of squared logsumexp (Zoph et al., arXiv 2202.08906, eq. 5)
  // A bias on each expert's probability, for the choice alone, which balances loads without a loss (Wang et
  // al., arXiv 2408.15664).
  bool balance_bias = false;
  // Of the router: where tensor-parallel ranks share out the rows, each holds a copy.
  Copies copies = Copies::one;
  bool counted = true;
};

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
  // `<name>.logits.bias` [experts]. Throws Error
  // for groups that do not divide the experts, and for losses of sigmoids, which have none.
  Router(ParameterGroup& group, const std::string& name, const ExpertsConfig& config);

  Routing forward(const at::Tensor& x) const;  // T [rows, hidden]

  // dweights: float32 [rows, chosen], gradient of the weights -> float32 [rows, hidden], what x gets of it
  // and of the router's losses. Counts the microbatch's loads.
  at::Tensor backward_input(const at::Tensor& x, const Routing& routing, const at::Tensor& dweights,
                            const TokenInfo& tokens, const ExpertExchange& exchange, WeightGradQueue& queue);
  void backward_weight(std::span<const at::Tensor> operands) override;  // x, dlogits
  bool learns() const override {
    return !weight_->frozen() || (logits_bias_ != nullptr && !logits_bias_->frozen());
  }

  // Rows of documents that went to each expert in the backward passes since the last call, from this rank:
  // int64 [experts]; undefined where there were none.
  at::Tensor take_loads();

 private:
  // Replaces what kernels::route has chosen, where the scores are sigmoids or the experts lie in groups.
  void choose(const at::Tensor& logits, Routing& routing) const;
  at::Tensor logits_gradient(const at::Tensor& dweights, const Routing& routing, const TokenInfo& tokens,
                             const at::Tensor& loads, const ExpertExchange& exchange) const;
  std::optional<at::Tensor> slopes(const at::Tensor& loads, const TokenInfo& tokens,
                                   const ExpertExchange& exchange) const;

  ExpertsConfig config_;
  Weight* weight_;
  Weight* bias_ = nullptr;  // for the choice alone
  Weight* logits_bias_ = nullptr;
  at::Tensor loads_;
};

// The weights [out, in] of this rank's experts, side by side, so that one grouped GEMM serves them all.
class ExpertWeights final : public HasWeightGradient {
 public:
  // One expert's `parts` ("gate", "up"), stacked, are one of its matrices: declares
  // `<name>.<expert>.<part>.weight` [out, in] for each expert of `range`.
  ExpertWeights(ParameterGroup& group, const std::string& name, ExpertRange range,
                const std::vector<std::string>& parts, int64_t out, int64_t in, double init_std);

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
  // Declares `<name>.<expert>.<part>.bias` [out] for each expert of `range`, as ExpertWeights does.
  ExpertBiases(ParameterGroup& group, const std::string& name, ExpertRange range,
               const std::vector<std::string>& parts, int64_t out);

  // rows: T [plan.rows, out], to each of which its expert's bias is added, times its weight (float32
  // [plan.rows], or undefined: 1).
  void add(at::Tensor& rows, const at::Tensor& weights, const ExpertExchange::Plan& plan) const;
  // float32 [plan.rows]: what the weights of rows get of dy through the biases.
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

class Experts final : public FeedForward {
 public:
  struct Saved final : FeedForward::Saved {
    // Decided in the forward pass: kept when the rest is dropped.
    Router::Routing routing;
    std::unique_ptr<const ExpertExchange::Plan> plan;
    at::Tensor row_weights;  // float32 [plan.rows]

    at::Tensor x;         // T [rows, hidden]
    at::Tensor received;  // T [plan.rows, hidden], where other ranks' rows are among them
    at::Tensor gate_up;   // T [plan.rows, 2 * intermediate]
    at::Tensor act;       // T [plan.rows, intermediate], weighted
    std::vector<at::Tensor> tensors() const override;
  };

  // Declares `<name>.router.*` in `group`, and `<name>.experts.E.{gate,up,down}.weight` (with a limit also
  // `.bias`) for each of this rank's experts in `experts`.
  Experts(ParameterGroup& group, ParameterGroup& experts, const std::string& name,
          const ExpertsConfig& config,
          std::shared_ptr<const ExpertExchange> exchange = std::make_shared<ExpertExchange>());

  std::unique_ptr<FeedForward::Saved> make_saved() const override { return std::make_unique<Saved>(); }
  void activate(const at::Tensor& x, const TokenInfo& tokens, FeedForward::Saved& saved) const override;
  at::Tensor project(const FeedForward::Saved& saved) const override;
  void drop(FeedForward::Saved& saved, Keep keep) const override;
  void restore(const at::Tensor& x, const TokenInfo& tokens, FeedForward::Saved& saved) const override;
  at::Tensor backward_input(FeedForward::Saved& saved, const at::Tensor& dy, const TokenInfo& tokens,
                            WeightGradQueue& queue) override;

  Router& router() { return router_; }

 private:
  // Of each token's row in T [rows, hidden], a copy for each of its experts, where these are.
  GroupedRows send(const at::Tensor& x, const Saved& saved) const;
  GroupedRows rows_of_x(const Saved& saved) const;  // the same of x, which were sent before
  // float32 [rows, chosen], of this rank's tokens, from float32 [plan.rows].
  at::Tensor return_weights(const at::Tensor& dweights, const Saved& saved) const;

  int64_t chosen_;
  Router router_;
  double limit_;
  ExpertWeights gate_up_, down_;
  std::optional<ExpertBiases> gate_up_bias_, down_bias_;
  std::shared_ptr<const ExpertExchange> exchange_;
};

// Experts, and beside them a dense feed-forward that every token passes (DeepSeekMoE, arXiv 2401.06066). With
// `gated_shared` a sigmoid of the token multiplies its result, as in Qwen2-MoE.
class SharedExperts final : public FeedForward, public HasWeightGradient {
 public:
  struct Saved final : FeedForward::Saved {
    std::unique_ptr<FeedForward::Saved> experts, shared;
    at::Tensor x;     // T [share, hidden], with a gate, as the two below
    at::Tensor out;   // T [share, hidden], of the dense part: never dropped
    at::Tensor gate;  // float32 [share, 1]
    std::vector<at::Tensor> tensors() const override;
  };

  // Declares what Experts does, `<name>.shared.{gate,up,down}.weight`, and `<name>.shared_gate.weight` [1,
  // hidden] with a gate. The ranks of `region` share out the dense part's inner width.
  SharedExperts(ParameterGroup& group, ParameterGroup& experts, const std::string& name,
                const ExpertsConfig& config,
                std::shared_ptr<const ExpertExchange> exchange = std::make_shared<ExpertExchange>(),
                std::shared_ptr<const Region> region = std::make_shared<Region>());

  std::unique_ptr<FeedForward::Saved> make_saved() const override;
  void activate(const at::Tensor& x, const TokenInfo& tokens, FeedForward::Saved& saved) const override;
  at::Tensor project(const FeedForward::Saved& saved) const override;
  void drop(FeedForward::Saved& saved, Keep keep) const override;
  void restore(const at::Tensor& x, const TokenInfo& tokens, FeedForward::Saved& saved) const override;
  at::Tensor backward_input(FeedForward::Saved& saved, const at::Tensor& dy, const TokenInfo& tokens,
                            WeightGradQueue& queue) override;
  void backward_weight(std::span<const at::Tensor> operands) override;  // x, gradient of the gate's logits
  bool learns() const override { return gate_ != nullptr && !gate_->frozen(); }

  Experts& experts() { return experts_; }

 private:
  Experts experts_;
  GatedMlp shared_;
  Weight* gate_ = nullptr;
};

}  // namespace pptrain::nn

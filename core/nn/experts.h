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

#include "core/nn/expert_exchange.h"
#include "core/nn/feed_forward.h"
#include "core/nn/parameter.h"
#include "core/nn/router.h"

namespace pptrain::nn {

struct ExpertsConfig {
  RouterConfig router;
  int64_t intermediate = 0;  // of each expert
  double init_std = 0.02;
};

// The weights [out, in] of this rank's experts, side by side, so that one grouped product serves them all.
class ExpertWeights final : public HasWeightGradient {
 public:
  // One expert's `parts` ("gate", "up"), stacked, are one of its matrices: declares
  // `<name>.<expert>.<part>.weight` [out, in] for each expert of `range`.
  ExpertWeights(ParameterGroup& group, const std::string& name, ExpertRange range,
                const std::vector<std::string>& parts, int64_t out, int64_t in, double init_std);

  // Rows of an operand, as kernels/expert_kernels.h takes them.
  struct Rows {
    at::Tensor x;
    at::Tensor order;  // undefined: x's own
    int64_t each = 1;
    std::optional<at::Tensor> optional_order() const {
      return order.defined() ? std::optional(order) : std::nullopt;
    }
  };
  at::Tensor forward(const Rows& x, const ExpertExchange::Plan& plan) const;          // T [plan.rows, out]
  at::Tensor backward_input(const Rows& dy, const ExpertExchange::Plan& plan) const;  // T [plan.rows, in]
  // Adds the gradient of dy^T x, now or later.
  void push(WeightGradQueue& queue, const Rows& dy, const Rows& x, const ExpertExchange::Plan& plan);
  void backward_weight(std::span<const at::Tensor> operands) override;

 private:
  at::Tensor by_expert(const at::Tensor& weight) const { return weight.view({experts_, out_, in_}); }

  int64_t experts_, out_, in_;
  int64_t each_ = 1;  // of every order that is pushed
  Weight* weight_;
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

  // Declares `<name>.router.*` in `group`, and `<name>.experts.E.{gate,up,down}.weight` for each of this
  // rank's experts in `experts`.
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
  ExpertWeights::Rows send(const at::Tensor& x, const Saved& saved) const;
  ExpertWeights::Rows rows_of_x(const Saved& saved) const;  // the same of x, which were sent before
  // float32 [rows, chosen], of this rank's tokens, from float32 [plan.rows].
  at::Tensor return_weights(const at::Tensor& dweights, const Saved& saved) const;

  int64_t chosen_;
  Router router_;
  ExpertWeights gate_up_, down_;
  std::shared_ptr<const ExpertExchange> exchange_;
};

}  // namespace pptrain::nn

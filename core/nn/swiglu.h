// Gated feed-forward: down(silu(gate(x)) * up(x)) (Shazeer, arXiv 2002.05202).
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "core/nn/feed_forward.h"
#include "core/nn/parallel_linear.h"
#include "core/nn/parameter.h"
#include "core/nn/region.h"

namespace pptrain::nn {

class SwiGlu final : public FeedForward {
 public:
  struct Saved final : FeedForward::Saved {
    at::Tensor x;        // T [share, hidden]
    at::Tensor gate_up;  // T [rows, 2 * this rank's width]
    at::Tensor act;      // T [rows, this rank's width]: operand of the down weight gradient
    std::vector<at::Tensor> tensors() const override { return {x, gate_up, act}; }
  };

  // Declares `<name>.{gate,up,down}.weight` (and biases). The ranks of `region` share out the inner width:
  // x, the result and their gradients are T [share, hidden].
  SwiGlu(ParameterGroup& group, const std::string& name, int64_t hidden, int64_t intermediate, bool bias,
         double init_std, double down_init_std,
         std::shared_ptr<const Region> region = std::make_shared<Region>());

  std::unique_ptr<FeedForward::Saved> make_saved() const override { return std::make_unique<Saved>(); }
  void activate(const at::Tensor& x, const TokenInfo& tokens, FeedForward::Saved& saved) const override;
  at::Tensor project(const FeedForward::Saved& saved) const override;
  void drop(FeedForward::Saved& saved, Keep keep) const override;
  void restore(const at::Tensor& x, const TokenInfo& tokens, FeedForward::Saved& saved) const override;
  at::Tensor backward_input(FeedForward::Saved& saved, const at::Tensor& dy, const TokenInfo& tokens,
                            WeightGradQueue& queue) override;

 private:
  ColumnLinear gate_up_;
  RowLinear down_;
};

}  // namespace pptrain::nn

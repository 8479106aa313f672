// Pre-norm transformer block: x + attention(norm(x)), then x + mlp(norm(x)), with explicit passes.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/nn/attention.h"
#include "core/nn/experts.h"
#include "core/nn/feed_forward.h"
#include "core/nn/norm.h"
#include "core/nn/parameter.h"
#include "core/nn/token_info.h"
#include "core/nn/weight_grad_queue.h"
#include "models/model_config.h"
#include "models/seams.h"

namespace pptrain::models {

struct BlockConfig {
  nn::AttentionConfig attention;
  int64_t intermediate = 0;
  bool mlp_bias = false;
  std::optional<nn::ExpertsConfig> experts = std::nullopt;  // in the place of the MLP
  double norm_eps = 1e-6;
  double init_std = 0.02;
  Recompute recompute = Recompute::none;
};

// What goes from one block to the next: the residual stream and the output that has not been added to it yet,
// so that every addition is fused into the norm that follows. Both T [share, hidden], of the rows that
// tensor-parallel ranks share out; delta may be undefined.
struct Residual {
  at::Tensor stream;
  at::Tensor delta;
};

class Block {
 public:
  struct Saved {
    nn::Norm::Saved attention_norm;
    nn::Attention::Saved attention;
    nn::Norm::Saved mlp_norm;
    std::unique_ptr<nn::FeedForward::Saved> mlp;  // null where it holds nothing
  };

  // Declares `<name>.attn_norm.weight`, `<name>.attn.*`, `<name>.mlp_norm.weight` and `<name>.mlp.*`; of
  // these
  // `<name>.mlp.experts.*` in `experts`, which a block without experts does not need.
  Block(nn::ParameterGroup& group, const std::string& name, const BlockConfig& config,
        const Seams& seams = {}, nn::ParameterGroup* experts = nullptr);

  // Reuses the memory of in.delta; keeps in.stream where there is no delta. `saved` is left without what the
  // recompute policy drops.
  Residual forward(Residual in, const nn::TokenInfo& tokens, Saved& saved) const;

  // dy: T [share, hidden], the gradient of stream + delta of the output -> the same of the input. `tokens`:
  // as in the forward pass. Computes again what was dropped, and frees `saved` as it goes. With a deferred
  // queue dy stays in use until the queue has run.
  at::Tensor backward_input(Saved& saved, const at::Tensor& dy, const nn::TokenInfo& tokens,
                            nn::WeightGradQueue& queue);

  // Router::take_loads of a block with experts; undefined without.
  at::Tensor take_loads() { return experts_ == nullptr ? at::Tensor() : experts_->router().take_loads(); }

 private:
  // The forward pass up to the feed-forward, whose input it returns: all else that fills `saved`.
  at::Tensor fill(Residual in, const nn::TokenInfo& tokens, Saved& saved) const;
  void drop(Saved& saved) const;
  // What drop() dropped, as far as the layers' backward passes do not give it again themselves.
  void recompute(Saved& saved, const nn::TokenInfo& tokens) const;

  Recompute recompute_;
  nn::Norm attention_norm_;
  nn::Attention attention_;
  nn::Norm mlp_norm_;
  std::unique_ptr<nn::FeedForward> mlp_;
  nn::Experts* experts_ = nullptr;  // mlp_, where it is that
};

// Every tensor that `saved` holds; some share memory, some are undefined.
std::vector<at::Tensor> saved_tensors(const Block::Saved& saved);

}  // namespace pptrain::models

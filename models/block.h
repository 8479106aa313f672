// Transformer block with explicit passes: x + attention(x), then x + mlp(x), each with a norm before it,
// after it or both; or both of the same x.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/config/recomputation.h"
#include "core/nn/attention.h"
#include "core/nn/experts.h"
#include "core/nn/feed_forward.h"
#include "core/nn/latent_attention.h"
#include "core/nn/norm.h"
#include "core/nn/parameter.h"
#include "core/nn/token_info.h"
#include "core/nn/weight_grad_queue.h"
#include "models/model_config.h"
#include "models/stage_parallelism.h"

namespace pptrain::models {

using config::Recompute;

// Places of norms: on the inputs of attention and MLP, on their outputs, or on both.
enum class NormPlaces { before, after, both };

struct BlockConfig {
  nn::AttentionConfig attention;
  std::optional<nn::LatentAttentionConfig> latent = std::nullopt;  // in its place
  int64_t intermediate = 0;
  nn::Activation activation = nn::Activation::silu;
  bool gated = true;
  bool mlp_bias = false;
  std::optional<nn::ExpertsConfig> experts = std::nullopt;  // in the place of the MLP
  nn::NormKind norm = nn::NormKind::rms;
  NormPlaces norms = NormPlaces::before;
  double norm_eps = 1e-6;
  bool parallel = false;      // attention and MLP take the same x, and both results are added to it
  double residual_scale = 1;  // of what attention and MLP give
  double init_std = 0.02;
};

// Passed from one block to the next: the residual stream, and the output that is not added to it yet, so that
// every addition is fused into the norm that follows. Both T [share, hidden]: with tensor parallelism each
// rank has a shard of the rows. delta may be undefined.
struct Residual {
  at::Tensor stream;
  at::Tensor delta;
};

// stream + delta, in the memory of delta; the stream if there is no delta. Rounds like the sum that is fused
// into a norm.
at::Tensor sum(Residual residual);

using AnyAttention = std::variant<nn::Attention, nn::LatentAttention>;

class Block {
 public:
  // x of a norm before a layer is the residual stream, even if there is no such norm; x of a norm after a
  // layer is the layer's result.
  struct Saved {
    Recompute recompute = Recompute::none;  // what the backward pass computes again
    nn::Norm::Saved attention_norm;
    std::variant<nn::Attention::Saved, nn::LatentAttention::Saved> attention;
    nn::Norm::Saved attention_post_norm;
    nn::Norm::Saved mlp_norm;
    std::unique_ptr<nn::FeedForward::Saved> mlp;  // null if it holds nothing
    nn::Norm::Saved mlp_post_norm;
  };

  // Declares `<name>.attn.*`, `<name>.mlp.*` and, for the norms that exist,
  // `<name>.{attn_norm,attn_post_norm,mlp_norm,mlp_post_norm}.*`. Declares `<name>.mlp.experts.*` in
  // `experts`, which may be null for a block without experts.
  Block(nn::ParameterGroup& group, const std::string& name, const BlockConfig& config,
        const StageParallelism& parallelism = {}, nn::ParameterGroup* experts = nullptr);

  // Reuses the memory of in.delta; keeps in.stream if there is no delta. `saved` is empty before the call,
  // and lacks what its level of recompute drops after it.
  Residual forward(Residual in, const nn::TokenInfo& tokens, Saved& saved) const;

  // dy: T [share, hidden], the gradient of stream + delta of the output -> the same for the input. `tokens`:
  // as in the forward pass. Recomputes what was dropped, and frees `saved` as it goes. With a deferred queue
  // dy stays in use until the queue has run.
  at::Tensor backward_input(Saved& saved, const at::Tensor& dy, const nn::TokenInfo& tokens,
                            nn::WeightGradQueue& queue);

  at::Tensor take_loads() { return mlp_->take_loads(); }  // as FeedForward::take_loads

 private:
  using MaybeNorm = std::optional<nn::Norm>;

  // Returns a layer's input; saved.x becomes the residual stream.
  static at::Tensor enter(const MaybeNorm& norm, Residual in, nn::Norm::Saved& saved);
  // Turns a layer's output y into what is added to the residual stream; may reuse the memory of y.
  at::Tensor leave(const MaybeNorm& norm, at::Tensor y, nn::Norm::Saved& saved) const;
  // Gradient of the stream: the layer's input gradient, whose memory is reused, plus `beside`, which bypasses
  // it.
  static at::Tensor enter_backward(MaybeNorm& norm, const nn::Norm::Saved& saved, at::Tensor grad,
                                   const at::Tensor& beside);
  // Gradient of y from `grad`, the gradient of leave's result, which is only read.
  at::Tensor leave_backward(MaybeNorm& norm, const nn::Norm::Saved& saved, const at::Tensor& grad) const;

  // The forward pass up to the feed-forward layer, whose input it returns; fills all of `saved` that comes
  // before. `attended` becomes what attention adds to the stream, if that is not added yet.
  at::Tensor fill(Residual in, const nn::TokenInfo& tokens, Saved& saved, at::Tensor& attended) const;
  void drop(Saved& saved) const;
  // Recomputes what drop() dropped, except what the layers' backward passes recompute themselves.
  void recompute(Saved& saved, const nn::TokenInfo& tokens) const;

  bool parallel_;
  double scale_;
  MaybeNorm attention_norm_;
  AnyAttention attention_;
  MaybeNorm attention_post_norm_, mlp_norm_;
  std::unique_ptr<nn::FeedForward> mlp_;
  MaybeNorm mlp_post_norm_;
};

// Every tensor that `saved` holds; some share memory, some are undefined.
std::vector<at::Tensor> saved_tensors(const Block::Saved& saved);

}  // namespace pptrain::models

#include "models/block.h"

#include <spdlog/fmt/fmt.h>

#include <utility>

#include "core/base/error.h"
#include "core/nn/feed_forward.h"

namespace pptrain::models {

// Experts take a rank's own rows, outside of the region of tensor-parallel ranks.
Block::Block(nn::ParameterGroup& group, const std::string& name, const BlockConfig& config,
             const Seams& seams, nn::ParameterGroup* experts)
    : recompute_(config.recompute),
      attention_norm_(group, name + ".attn_norm", config.attention.hidden, nn::NormKind::rms, config.norm_eps,
                      seams.region->cut()),
      attention_(group, name + ".attn", config.attention, seams.attention, seams.region),
      mlp_norm_(group, name + ".mlp_norm", config.attention.hidden, nn::NormKind::rms, config.norm_eps,
                seams.region->cut()) {
  if (!config.experts) {
    mlp_ = std::make_unique<nn::GatedMlp>(group, name + ".mlp", config.attention.hidden, config.intermediate,
                                          nn::Activation::silu, config.mlp_bias, config.init_std,
                                          config.init_std, seams.region);
    return;
  }
  if (experts == nullptr) throw Error(fmt::format("{} has experts, but no group for them", name));
  nn::ExpertsConfig own = *config.experts;
  if (!seams.region->alone()) {
    own.copies = nn::Copies::tp;
    own.counted = seams.region->cut().rank == 0;
  }
  auto mlp = std::make_unique<nn::Experts>(group, *experts, name + ".mlp", own, seams.experts);
  experts_ = mlp.get();
  mlp_ = std::move(mlp);
}

at::Tensor Block::fill(Residual in, const nn::TokenInfo& tokens, Saved& saved) const {
  const at::Tensor normed = attention_norm_.forward(in.stream, std::move(in.delta), saved.attention_norm);
  in.stream.reset();
  at::Tensor attended = attention_.forward(normed, tokens, saved.attention);
  return mlp_norm_.forward(saved.attention_norm.x, std::move(attended), saved.mlp_norm);
}

Residual Block::forward(Residual in, const nn::TokenInfo& tokens, Saved& saved) const {
  const at::Tensor normed = fill(std::move(in), tokens, saved);
  saved.mlp = mlp_->make_saved();
  mlp_->activate(normed, tokens, *saved.mlp);
  Residual out{.stream = saved.mlp_norm.x, .delta = mlp_->project(*saved.mlp)};
  drop(saved);
  return out;
}

void Block::drop(Saved& saved) const {
  if (recompute_ == Recompute::none) return;
  if (recompute_ == Recompute::full) {
    saved.attention = {};
    saved.mlp_norm = {};
  } else {
    saved.attention.x.reset();
    saved.mlp_norm.drop();
  }
  saved.attention_norm.drop();
  using Keep = nn::FeedForward::Keep;
  mlp_->drop(*saved.mlp, recompute_ == Recompute::cheap ? Keep::products : Keep::nothing);
}

// A norm of a sum that was rounded before has the bits of the norm fused with the addition.
void Block::recompute(Saved& saved, const nn::TokenInfo& tokens) const {
  if (recompute_ == Recompute::none) return;
  at::Tensor normed;
  if (recompute_ == Recompute::full) {
    normed = fill({.stream = saved.attention_norm.x, .delta = {}}, tokens, saved);
  } else {
    saved.attention.x = attention_norm_.forward(saved.attention_norm.x, {}, saved.attention_norm);
    normed = mlp_norm_.forward(saved.mlp_norm.x, {}, saved.mlp_norm);
  }
  mlp_->restore(normed, tokens, *saved.mlp);
}

at::Tensor Block::backward_input(Saved& saved, const at::Tensor& dy, const nn::TokenInfo& tokens,
                                 nn::WeightGradQueue& queue) {
  recompute(saved, tokens);
  at::Tensor grad = mlp_->backward_input(*saved.mlp, dy, tokens, queue);
  saved.mlp.reset();
  grad = mlp_norm_.backward(saved.mlp_norm, grad, dy);
  saved.mlp_norm = {};
  const at::Tensor sum_grad = std::move(grad);
  grad = attention_.backward_input(saved.attention, sum_grad, tokens, queue);
  grad = attention_norm_.backward(saved.attention_norm, grad, sum_grad);
  saved.attention_norm = {};
  return grad;
}

std::vector<at::Tensor> saved_tensors(const Block::Saved& saved) {
  std::vector<at::Tensor> result = saved.attention.tensors();
  const auto add = [&](const std::vector<at::Tensor>& tensors) {
    result.insert(result.end(), tensors.begin(), tensors.end());
  };
  add(saved.attention_norm.tensors());
  add(saved.mlp_norm.tensors());
  if (saved.mlp) add(saved.mlp->tensors());
  return result;
}

}  // namespace pptrain::models

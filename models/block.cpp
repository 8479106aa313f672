#include "models/block.h"

#include <spdlog/fmt/fmt.h>

#include <utility>

#include "core/base/error.h"
#include "core/kernels/dry_run.h"
#include "core/nn/feed_forward.h"

namespace pptrain::models {

namespace {

using at::Tensor;

std::optional<nn::Norm> make_norm(nn::ParameterGroup& group, const std::string& name,
                                  const BlockConfig& config, NormPlaces unless,
                                  const StageParallelism& parallelism) {
  if (config.norms == unless) return std::nullopt;
  return nn::Norm(group, name, config.attention.hidden, config.norm, config.norm_eps, parallelism.tp->cut());
}

AnyAttention make_attention(nn::ParameterGroup& group, const std::string& name, const BlockConfig& config,
                            const StageParallelism& parallelism) {
  if (config.latent)
    return AnyAttention(std::in_place_type<nn::LatentAttention>, group, name, *config.latent,
                        parallelism.attention, parallelism.tp);
  return AnyAttention(std::in_place_type<nn::Attention>, group, name, config.attention, parallelism.attention,
                      parallelism.tp);
}

// Experts take a rank's own rows, outside of the tensor-parallel group; a shared expert is sharded over the
// group.
std::unique_ptr<nn::FeedForward> make_mlp(nn::ParameterGroup& group, nn::ParameterGroup* experts,
                                          const std::string& name, const BlockConfig& config,
                                          const StageParallelism& parallelism) {
  if (!config.experts) {
    return std::make_unique<nn::Mlp>(group, name, config.attention.hidden, config.intermediate,
                                     config.activation, config.gated, config.mlp_bias, config.init_std,
                                     config.init_std, parallelism.tp);
  }
  if (experts == nullptr) throw Error(fmt::format("{} has experts, but no group for them", name));
  nn::ExpertsConfig sparse = *config.experts;
  sparse.rows = parallelism.tp->cut();
  if (sparse.shared == 0)
    return std::make_unique<nn::Experts>(group, *experts, name, sparse, parallelism.experts);
  return std::make_unique<nn::SharedExperts>(group, *experts, name, sparse, parallelism.experts,
                                             parallelism.tp);
}

}  // namespace

Tensor sum(Residual residual) {
  if (!residual.delta.defined()) return residual.stream;
  kernels::add(residual.delta, residual.stream);
  return residual.delta;
}

Block::Block(nn::ParameterGroup& group, const std::string& name, const BlockConfig& config,
             const StageParallelism& parallelism, nn::ParameterGroup* experts)
    : parallel_(config.parallel),
      scale_(config.residual_scale),
      attention_norm_(make_norm(group, name + ".attn_norm", config, NormPlaces::after, parallelism)),
      attention_(make_attention(group, name + ".attn", config, parallelism)),
      attention_post_norm_(
          make_norm(group, name + ".attn_post_norm", config, NormPlaces::before, parallelism)),
      mlp_norm_(make_norm(group, name + ".mlp_norm", config, NormPlaces::after, parallelism)),
      mlp_(make_mlp(group, experts, name + ".mlp", config, parallelism)),
      mlp_post_norm_(make_norm(group, name + ".mlp_post_norm", config, NormPlaces::before, parallelism)) {}

Tensor Block::enter(const MaybeNorm& norm, Residual in, nn::Norm::Saved& saved) {
  if (norm) return norm->forward(in.stream, std::move(in.delta), saved);
  saved.x = sum(std::move(in));
  return saved.x;
}

Tensor Block::leave(const MaybeNorm& norm, Tensor y, nn::Norm::Saved& saved) const {
  if (norm) y = norm->forward(y, {}, saved);
  if (scale_ == 1) return y;
  kernels::record(kernels::moving(y, y));
  return y.mul_(scale_);
}

Tensor Block::enter_backward(MaybeNorm& norm, const nn::Norm::Saved& saved, Tensor grad,
                             const Tensor& beside) {
  if (norm) return norm->backward(saved, grad, beside);
  kernels::add(grad, beside);
  return grad;
}

Tensor Block::leave_backward(MaybeNorm& norm, const nn::Norm::Saved& saved, const Tensor& grad) const {
  if (!norm && scale_ == 1) return grad;
  const Tensor own = scale_ == 1 ? grad.clone() : grad.mul(scale_);
  kernels::record(kernels::moving(grad, own));
  return norm ? norm->backward(saved, own, {}) : own;
}

Tensor Block::fill(Residual in, const nn::TokenInfo& tokens, Saved& saved, Tensor& attended) const {
  const Tensor x = enter(attention_norm_, std::move(in), saved.attention_norm);
  attended = std::visit(
      [&]<class Layer>(const Layer& layer) {
        return layer.forward(x, tokens, saved.attention.emplace<typename Layer::Saved>());
      },
      attention_);
  attended = leave(attention_post_norm_, std::move(attended), saved.attention_post_norm);
  const Tensor& stream = saved.attention_norm.x;
  return enter(mlp_norm_, {stream, parallel_ ? Tensor() : std::move(attended)}, saved.mlp_norm);
}

Residual Block::forward(Residual in, const nn::TokenInfo& tokens, Saved& saved) const {
  Tensor attended;
  const Tensor x = fill(std::move(in), tokens, saved, attended);
  saved.mlp = mlp_->activate(x, tokens);
  Residual out{.stream = saved.mlp_norm.x,
               .delta = leave(mlp_post_norm_, mlp_->project(*saved.mlp), saved.mlp_post_norm)};
  if (parallel_) kernels::add(out.delta, attended);
  drop(saved);
  return out;
}

// If a norm follows, the MLP's result is kept: recomputing it would need the MLP's last GEMM.
void Block::drop(Saved& saved) const {
  if (saved.recompute == Recompute::none) return;
  if (saved.recompute == Recompute::full) {
    saved.attention = {};
    saved.attention_post_norm = {};
    saved.mlp_norm = {};
  } else {
    std::visit([](auto& attention) { attention.x.reset(); }, saved.attention);
    saved.mlp_norm.drop();
  }
  saved.attention_norm.drop();
  using Keep = nn::FeedForward::Keep;
  mlp_->drop(*saved.mlp, saved.recompute == Recompute::cheap ? Keep::products : Keep::nothing);
}

// A norm of a sum that was rounded before has the bits of the norm fused with the addition.
void Block::recompute(Saved& saved, const nn::TokenInfo& tokens) const {
  if (saved.recompute == Recompute::none) return;
  Tensor x;
  if (saved.recompute == Recompute::full) {
    Tensor attended;
    x = fill({.stream = saved.attention_norm.x, .delta = {}}, tokens, saved, attended);
  } else {
    x = enter(attention_norm_, {saved.attention_norm.x, {}}, saved.attention_norm);
    std::visit([&](auto& attention) { attention.x = x; }, saved.attention);
    x = enter(mlp_norm_, {saved.mlp_norm.x, {}}, saved.mlp_norm);
  }
  mlp_->restore(x, tokens, *saved.mlp);
}

Tensor Block::backward_input(Saved& saved, const Tensor& dy, const nn::TokenInfo& tokens,
                             nn::WeightGradQueue& queue) {
  recompute(saved, tokens);
  Tensor grad = leave_backward(mlp_post_norm_, saved.mlp_post_norm, dy);
  saved.mlp_post_norm = {};
  grad = mlp_->backward_input(*saved.mlp, grad, tokens, queue);
  saved.mlp.reset();
  const Tensor stream_grad = enter_backward(mlp_norm_, saved.mlp_norm, std::move(grad), dy);
  saved.mlp_norm = {};
  grad = leave_backward(attention_post_norm_, saved.attention_post_norm, parallel_ ? dy : stream_grad);
  saved.attention_post_norm = {};
  grad = std::visit(
      [&]<class Layer>(Layer& layer) {
        return layer.backward_input(std::get<typename Layer::Saved>(saved.attention), grad, tokens, queue);
      },
      attention_);
  grad = enter_backward(attention_norm_, saved.attention_norm, std::move(grad), stream_grad);
  saved.attention_norm = {};
  return grad;
}

std::vector<Tensor> saved_tensors(const Block::Saved& saved) {
  std::vector<Tensor> result =
      std::visit([](const auto& attention) { return attention.tensors(); }, saved.attention);
  const auto add = [&](const std::vector<Tensor>& tensors) {
    result.insert(result.end(), tensors.begin(), tensors.end());
  };
  for (const nn::Norm::Saved* norm :
       {&saved.attention_norm, &saved.attention_post_norm, &saved.mlp_norm, &saved.mlp_post_norm})
    add(norm->tensors());
  if (saved.mlp) add(saved.mlp->tensors());
  return result;
}

}  // namespace pptrain::models

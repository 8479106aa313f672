#include "core/nn/attention.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <spdlog/fmt/fmt.h>

#include <optional>
#include <utility>

#include "core/base/error.h"
#include "core/kernels/dry_run.h"
#include "core/kernels/kernels.h"

namespace pptrain::nn {
namespace {

using at::Tensor;

const AttentionConfig& checked(const std::string& name, const AttentionConfig& config) {
  if (config.heads <= 0 || config.kv_heads <= 0 || config.heads % config.kv_heads != 0 ||
      config.head_dim <= 0 || config.head_dim % 2 != 0) {
    throw Error(fmt::format(
        "{}: {} heads, {} key-value heads of dim {}: key-value heads must divide heads, and the dim must "
        "be even",
        name, config.heads, config.kv_heads, config.head_dim));
  }
  return config;
}

Weight* add_norm(ParameterGroup& group, const std::string& name, int64_t dim) {
  return &group.add({{.name = name + ".weight", .shape = {dim}, .role = Role::norm, .init = Init::ones}});
}

std::optional<Tensor> weight_of(const Weight* weight) {
  return weight == nullptr ? std::nullopt : std::optional(weight->compute);
}

std::optional<Tensor> grad_of(const Weight* weight) {
  return weight == nullptr ? std::nullopt : std::optional(weight->grad);
}

// q, k and v parts of a fused [tokens, (heads + 2 kv_heads) * head_dim], as [tokens, heads | kv_heads,
// head_dim].
struct Heads {
  Tensor q, k, v;
};

Heads split_heads(const Tensor& qkv, const AttentionConfig& c) {
  const Tensor all = qkv.view({qkv.size(0), c.heads + 2 * c.kv_heads, c.head_dim});
  return {.q = all.narrow(1, 0, c.heads),
          .k = all.narrow(1, c.heads, c.kv_heads),
          .v = all.narrow(1, c.heads + c.kv_heads, c.kv_heads)};
}

}  // namespace

std::vector<Tensor> Attention::Saved::tensors() const {
  std::vector<Tensor> result = product.tensors();
  result.insert(result.end(), {x, qkv, q_rstd, k_rstd, out});
  return result;
}

Attention::Attention(ParameterGroup& group, const std::string& name, const AttentionConfig& config,
                     std::shared_ptr<AttentionProduct> product)
    : config_(checked(name, config)),
      product_(std::move(product)),
      qkv_(group, config.hidden,
           {{name + ".q", config.heads * config.head_dim},
            {name + ".k", config.kv_heads * config.head_dim},
            {name + ".v", config.kv_heads * config.head_dim}},
           config.qkv_bias, config.init_std),
      o_(group, config.heads * config.head_dim, {{name + ".o", config.hidden}}, config.o_bias,
         config.o_init_std) {
  if (config.qk_norm) {
    q_norm_ = add_norm(group, name + ".q_norm", config.head_dim);
    k_norm_ = add_norm(group, name + ".k_norm", config.head_dim);
  }
}

Tensor Attention::forward(const Tensor& x, const TokenInfo& tokens, Saved& saved) const {
  saved.x = x;
  saved.qkv = qkv_.forward(x);
  const Heads heads = split_heads(saved.qkv, config_);
  Tensor q = heads.q;
  Tensor k = heads.k;
  if (config_.qk_norm) {
    const auto f32 = x.options().dtype(at::kFloat);
    q = at::empty(heads.q.sizes(), x.options());
    k = at::empty(heads.k.sizes(), x.options());
    saved.q_rstd = at::empty({x.size(0), config_.heads}, f32);
    saved.k_rstd = at::empty({x.size(0), config_.kv_heads}, f32);
  }
  kernels::norm_rope(heads.q, weight_of(q_norm_), config_.norm_eps, tokens.rope, tokens.positions, q,
                     saved.q_rstd);
  kernels::norm_rope(heads.k, weight_of(k_norm_), config_.norm_eps, tokens.rope, tokens.positions, k,
                     saved.k_rstd);
  saved.out = product_->forward(q, k, heads.v, tokens, saved.product).view({x.size(0), o_.in_features()});
  return o_.forward(saved.out);
}

Tensor Attention::qkv_gradient(const Saved& saved, const AttentionGradients& grads, const TokenInfo& tokens) {
  // Without QK-norm nothing reads q and k again, so that the gradient takes their place.
  Tensor dqkv = config_.qk_norm ? at::empty_like(saved.qkv) : saved.qkv;
  const Heads heads = split_heads(saved.qkv, config_);
  Heads to = split_heads(dqkv, config_);
  to.v.copy_(grads.dv);
  kernels::record(kernels::moving(grads.dv, to.v));
  kernels::norm_rope_backward(grads.dk, heads.k, weight_of(k_norm_), saved.k_rstd, tokens.rope,
                              tokens.positions, to.k, grad_of(k_norm_));
  kernels::norm_rope_backward(grads.dq, heads.q, weight_of(q_norm_), saved.q_rstd, tokens.rope,
                              tokens.positions, to.q, grad_of(q_norm_));
  return dqkv;
}

Tensor Attention::backward_input(Saved& saved, const Tensor& dy, const TokenInfo& tokens,
                                 WeightGradQueue& queue) {
  Tensor dqkv;
  {
    const AttentionGradients grads =
        product_->backward(o_.backward_input(dy).view({dy.size(0), config_.heads, config_.head_dim}), tokens,
                           std::move(saved.product));
    queue.push(o_, {std::move(saved.out), dy});
    dqkv = qkv_gradient(saved, grads, tokens);
  }
  const Tensor x = std::move(saved.x);
  saved = {};
  Tensor dx = qkv_.backward_input(dqkv);
  queue.push(qkv_, {x, std::move(dqkv)});
  return dx;
}

}  // namespace pptrain::nn

#include "core/nn/attention.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <spdlog/fmt/fmt.h>

#include <utility>

#include "core/base/error.h"
#include "core/nn/causal_attention.h"

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

// q, k and v parts of a fused [batch * seq, (heads + 2 kv_heads) * head_dim], as [batch, seq, heads |
// kv_heads, head_dim].
struct Heads {
  Tensor q, k, v;
};

Heads split_heads(const Tensor& qkv, const Tensor& positions, const AttentionConfig& c) {
  const Tensor all = qkv.view({positions.size(0), positions.size(1), c.heads + 2 * c.kv_heads, c.head_dim});
  return {.q = all.narrow(2, 0, c.heads),
          .k = all.narrow(2, c.heads, c.kv_heads),
          .v = all.narrow(2, c.heads + c.kv_heads, c.kv_heads)};
}

}  // namespace

Attention::Attention(ParameterGroup& group, const std::string& name, const AttentionConfig& config)
    : config_(checked(name, config)),
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

Tensor Attention::forward(const Tensor& x, const Tensor& positions, const kernels::RopeTable& rope,
                          Saved& saved) const {
  saved.x = x;
  saved.positions = positions;
  saved.qkv = qkv_.forward(x);
  const Heads heads = split_heads(saved.qkv, positions, config_);
  saved.q = heads.q;
  saved.k = heads.k;
  if (config_.qk_norm) {
    const int64_t batch = positions.size(0);
    const int64_t seq = positions.size(1);
    const auto f32 = x.options().dtype(at::kFloat);
    saved.q = at::empty({batch, seq, config_.heads, config_.head_dim}, x.options());
    saved.k = at::empty({batch, seq, config_.kv_heads, config_.head_dim}, x.options());
    saved.q_rstd = at::empty({batch, seq, config_.heads}, f32);
    saved.k_rstd = at::empty({batch, seq, config_.kv_heads}, f32);
  }
  kernels::norm_rope(heads.q, weight_of(q_norm_), config_.norm_eps, rope, positions, saved.q, saved.q_rstd);
  kernels::norm_rope(heads.k, weight_of(k_norm_), config_.norm_eps, rope, positions, saved.k, saved.k_rstd);
  AttentionStatistics statistics;
  saved.out = causal_attention(saved.q, saved.k, heads.v, statistics).view({x.size(0), o_.in_features()});
  saved.logsumexp = std::move(statistics.logsumexp);
  saved.rng_seed = std::move(statistics.rng_seed);
  saved.rng_offset = std::move(statistics.rng_offset);
  return o_.forward(saved.out);
}

Tensor Attention::qkv_gradient(Saved& saved, AttentionGradients grads, const kernels::RopeTable& rope) {
  // Without QK-norm nothing reads q and k again, so that the gradient takes their place.
  Tensor dqkv = config_.qk_norm ? at::empty_like(saved.qkv) : saved.qkv;
  const Heads heads = split_heads(saved.qkv, saved.positions, config_);
  Heads to = split_heads(dqkv, saved.positions, config_);
  to.v.copy_(grads.dv);
  kernels::norm_rope_backward(grads.dk, heads.k, weight_of(k_norm_), saved.k_rstd, rope, saved.positions,
                              to.k, grad_of(k_norm_));
  kernels::norm_rope_backward(grads.dq, heads.q, weight_of(q_norm_), saved.q_rstd, rope, saved.positions,
                              to.q, grad_of(q_norm_));
  return dqkv;
}

Tensor Attention::backward_input(Saved& saved, const Tensor& dy, const kernels::RopeTable& rope,
                                 WeightGradQueue& queue) {
  AttentionGradients grads;
  {
    const AttentionStatistics statistics{std::move(saved.logsumexp), std::move(saved.rng_seed),
                                         std::move(saved.rng_offset)};
    const Tensor q = std::move(saved.q);
    const Tensor k = std::move(saved.k);
    const Tensor v = split_heads(saved.qkv, saved.positions, config_).v;
    grads = causal_attention_backward(o_.backward_input(dy).view(q.sizes()), q, k, v,
                                      saved.out.view(q.sizes()), statistics);
  }
  queue.push(o_, {std::move(saved.out), dy});
  Tensor dqkv = qkv_gradient(saved, std::move(grads), rope);
  const Tensor x = std::move(saved.x);
  saved = {};
  Tensor dx = qkv_.backward_input(dqkv);
  queue.push(qkv_, {x, std::move(dqkv)});
  return dx;
}

}  // namespace pptrain::nn

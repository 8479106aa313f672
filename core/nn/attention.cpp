#include "core/nn/attention.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "core/base/error.h"
#include "core/kernels/dry_run.h"
#include "core/kernels/kernels.h"

namespace pptrain::nn {
namespace {

using at::Tensor;

// The configuration with the heads of one of `size` ranks.
AttentionConfig local_heads(const std::string& name, const AttentionConfig& config, int size) {
  if (config.heads <= 0 || config.kv_heads <= 0 || config.heads % config.kv_heads != 0 ||
      config.head_dim <= 0 || config.head_dim % 2 != 0) {
    throw Error(
        fmt::format("{}: {} heads, {} key-value heads of dim {}: key-value heads must divide heads, and the "
                    "dim must be even",
                    name, config.heads, config.kv_heads, config.head_dim));
  }
  if (config.heads % size != 0 || (config.kv_heads % size != 0 && size % config.kv_heads != 0)) {
    throw Error(
        fmt::format("{}: {} tensor-parallel ranks must divide {} heads, and divide or be a multiple of {} "
                    "key-value heads",
                    name, size, config.heads, config.kv_heads));
  }
  AttentionConfig local = config;
  local.heads = config.heads / size;
  local.kv_heads = std::max<int64_t>(1, config.kv_heads / size);
  return local;
}

Weight* add_norm(ParameterGroup& group, const std::string& name, int64_t dim, const TensorCut& cut) {
  return &group.add({cut.copied({.name = name + ".weight", .shape = {dim}, .role = Role::norm})});
}

LinearPart part_of(const std::string& name, const char* which, int64_t heads, const AttentionConfig& c) {
  return {.name = name + which, .out_features = heads * c.head_dim};
}

// k and v of the key-value head that `size / kv_heads` neighbours hold a copy of.
Linear copied_kv(ParameterGroup& group, const std::string& name, const AttentionConfig& c,
                 const TensorCut& cut) {
  const auto kv_heads = static_cast<int>(c.kv_heads);
  const int neighbours = cut.size / kv_heads;
  const TensorCut of_heads{.rank = cut.rank / neighbours, .size = kv_heads};
  const auto copy = [&](ParameterSpec spec) {
    spec = of_heads.cut(std::move(spec), 0);
    spec.copies = Copies::kv;
    spec.counted = cut.rank % neighbours == 0;
    return spec;
  };
  std::vector<ParameterSpec> weights, biases;
  for (const char* which : {".k", ".v"}) {
    const LinearPart part = part_of(name, which, c.kv_heads, c);
    weights.push_back(copy(weight_spec(part, c.hidden, c.init_std)));
    if (c.qkv_bias) biases.push_back(copy(bias_spec(part)));
  }
  return Linear(group, std::move(weights), std::move(biases));
}

ColumnLinear make_qkv(ParameterGroup& group, const std::string& name, const AttentionConfig& c,
                      std::shared_ptr<const Region> region) {
  const TensorCut& cut = region->cut();
  const LinearPart q = part_of(name, ".q", c.heads, c);
  if (c.kv_heads % cut.size == 0) {
    return ColumnLinear(group, c.hidden,
                        {q, part_of(name, ".k", c.kv_heads, c), part_of(name, ".v", c.kv_heads, c)},
                        c.qkv_bias, c.init_std, std::move(region));
  }
  std::vector<ParameterSpec> biases;
  if (c.qkv_bias) biases.push_back(cut.cut(bias_spec(q), 0));
  std::vector<Linear> blocks;
  blocks.emplace_back(group, std::vector{cut.cut(weight_spec(q, c.hidden, c.init_std), 0)},
                      std::move(biases));
  blocks.push_back(copied_kv(group, name, c, cut));
  return ColumnLinear(std::move(blocks), std::move(region));
}

std::optional<Tensor> weight_of(const Weight* weight) {
  return weight == nullptr ? std::nullopt : std::optional(weight->compute);
}

std::optional<Tensor> grad_of(const Weight* weight) {
  return weight == nullptr ? std::nullopt : std::optional(weight->grad_or_scratch());
}

// q, k and v parts of the projections, as [tokens, heads | kv_heads, head_dim].
struct Heads {
  Tensor q, k, v;
};

Heads split_heads(const std::vector<Tensor>& qkv, const AttentionConfig& c) {
  const auto heads = [&](const Tensor& x, int64_t first, int64_t count) {
    return x.view({x.size(0), x.size(1) / c.head_dim, c.head_dim}).narrow(1, first, count);
  };
  const bool fused = qkv.size() == 1;
  const int64_t first = fused ? c.heads : 0;  // of k
  return {.q = heads(qkv.front(), 0, c.heads),
          .k = heads(qkv.back(), first, c.kv_heads),
          .v = heads(qkv.back(), first + c.kv_heads, c.kv_heads)};
}

// q and k as one: [tokens, heads + kv_heads, head_dim]. Undefined where they are no neighbours.
Tensor q_and_k(const std::vector<Tensor>& qkv, const AttentionConfig& c) {
  if (qkv.size() != 1) return {};
  return qkv.front().view({qkv.front().size(0), -1, c.head_dim}).narrow(1, 0, c.heads + c.kv_heads);
}

}  // namespace

std::vector<Tensor> Attention::Saved::tensors() const {
  std::vector<Tensor> result = core.tensors();
  result.insert(result.end(), {x, q_rstd, k_rstd, out});
  result.insert(result.end(), qkv.begin(), qkv.end());
  return result;
}

Attention::Attention(ParameterGroup& group, const std::string& name, const AttentionConfig& config,
                     std::shared_ptr<attention::CoreAttention> core, std::shared_ptr<const Region> region)
    : local_(local_heads(name, config, region->cut().size)),
      core_(std::move(core)),
      qkv_(make_qkv(group, name, config, region)),
      o_(group, config.heads * config.head_dim, {name + ".o", config.hidden}, config.o_bias,
         config.o_init_std, region) {
  if (config.qk_norm) {
    q_norm_ = add_norm(group, name + ".q_norm", config.head_dim, region->cut());
    k_norm_ = add_norm(group, name + ".k_norm", config.head_dim, region->cut());
  }
}

Tensor Attention::forward(const Tensor& x, const TokenInfo& tokens, Saved& saved) const {
  const int64_t rows = tokens.positions.size(0);
  saved.x = x;
  saved.qkv = qkv_.forward(x, rows);
  const Heads heads = split_heads(saved.qkv, local_);
  Tensor q = heads.q;
  Tensor k = heads.k;
  if (local_.qk_norm) {
    const auto f32 = x.options().dtype(at::kFloat);
    q = at::empty(heads.q.sizes(), x.options());
    k = at::empty(heads.k.sizes(), x.options());
    saved.q_rstd = at::empty({rows, local_.heads}, f32);
    saved.k_rstd = at::empty({rows, local_.kv_heads}, f32);
  }
  std::vector<kernels::HeadsPart> parts;
  if (const Tensor both = q_and_k(saved.qkv, local_); !local_.qk_norm && both.defined()) {
    parts = {{.x = both, .y = both}};
  } else {
    parts = {{.x = heads.q, .y = q, .weight = weight_of(q_norm_), .rstd = saved.q_rstd},
             {.x = heads.k, .y = k, .weight = weight_of(k_norm_), .rstd = saved.k_rstd}};
  }
  kernels::norm_rope(parts, local_.norm_eps, tokens.rope, tokens.positions);
  saved.out =
      core_
          ->forward({.q = q, .k = k, .v = heads.v, .documents = tokens.segments, .split = tokens.context},
                    saved.core)
          .view({rows, o_.in_features()});
  return o_.forward(saved.out);
}

void Attention::rotate_back(const Saved& saved, const attention::Gradients& grads, const TokenInfo& tokens,
                            const Tensor& dq, const Tensor& dk) {
  const Heads heads = split_heads(saved.qkv, local_);
  kernels::norm_rope_backward({{.dy = grads.dk,
                                .dx = dk,
                                .x = heads.k,
                                .weight = weight_of(k_norm_),
                                .rstd = saved.k_rstd,
                                .weight_grad = grad_of(k_norm_)},
                               {.dy = grads.dq,
                                .dx = dq,
                                .x = heads.q,
                                .weight = weight_of(q_norm_),
                                .rstd = saved.q_rstd,
                                .weight_grad = grad_of(q_norm_)}},
                              tokens.rope, tokens.positions);
}

Tensor Attention::rotate_fused_back(const Saved& saved, const attention::Gradients& grads,
                                    const TokenInfo& tokens) {
  if (local_.qk_norm) {
    rotate_back(saved, grads, tokens, grads.dq, grads.dk);
  } else {
    const Tensor both = grads.fused.narrow(1, 0, local_.heads + local_.kv_heads);
    kernels::norm_rope_backward({{.dy = both, .dx = both}}, tokens.rope, tokens.positions);
  }
  return grads.fused.flatten(1);
}

std::vector<Tensor> Attention::qkv_gradient(const Saved& saved, const attention::Gradients& grads,
                                            const TokenInfo& tokens) {
  if (grads.fused.defined() && saved.qkv.size() == 1) return {rotate_fused_back(saved, grads, tokens)};
  // Without QK-norm nothing reads q and k again, so that the gradient takes their place.
  std::vector<Tensor> dqkv = saved.qkv;
  if (local_.qk_norm) {
    for (Tensor& part : dqkv) part = at::empty_like(part);
  }
  const Heads to = split_heads(dqkv, local_);
  to.v.copy_(grads.dv);
  kernels::record(kernels::moving(grads.dv, to.v));
  rotate_back(saved, grads, tokens, to.q, to.k);
  return dqkv;
}

Tensor Attention::backward_input(Saved& saved, const Tensor& dy, const TokenInfo& tokens,
                                 WeightGradQueue& queue) {
  std::vector<Tensor> dqkv;
  {
    const attention::Gradients grads =
        core_->backward(o_.backward(std::move(saved.out), dy, queue)
                            .view({tokens.positions.size(0), local_.heads, local_.head_dim}),
                        std::move(saved.core));
    dqkv = qkv_gradient(saved, grads, tokens);
  }
  Tensor x = std::move(saved.x);
  saved = {};
  return qkv_.backward(std::move(x), std::move(dqkv), queue);
}

}  // namespace pptrain::nn

#include "core/nn/attention.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "core/base/error.h"
#include "core/kernels/dry_run.h"
#include "core/kernels/kernels.h"

namespace pptrain::nn {
namespace {

using at::Tensor;

void check_rotation(const std::string& name, const AttentionConfig& c) {
  if (c.rotary_dim < 0 || c.rotary_dim > c.head_dim || c.rotary_dim % 2 != 0) {
    throw Error(
        fmt::format("{}: rotation of {} dims of a head of {}: they must be an even number of its dims", name,
                    c.rotary_dim, c.head_dim));
  }
}

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
  check_rotation(name, config);
  if (config.qk_norm == QkNorm::whole && size > 1)
    throw Error(
        fmt::format("{}: a norm over all heads of q and k cannot run on several tensor-parallel ranks: "
                    "each has some of the heads",
                    name));
  AttentionConfig local = config;
  local.heads = config.heads / size;
  local.kv_heads = std::max<int64_t>(1, config.kv_heads / size);
  if (local.rotary_dim == local.head_dim) local.rotary_dim = 0;
  return local;
}

LinearPart part_of(const std::string& name, const char* which, int64_t heads, const AttentionConfig& c) {
  return {.name = name + which, .out_features = heads * c.head_dim};
}

// Do norms take rows of q and of k, apart from rotation? The kernel that does both takes whole heads.
bool norms_rows(const AttentionConfig& c) {
  const bool turns_all = c.rope >= 0 && (c.rotary_dim == 0 || c.rotary_dim == c.head_dim);
  return c.qk_norm == QkNorm::whole || (c.qk_norm == QkNorm::head && !turns_all);
}

// A parameter of a key-value head, of which `size / kv_heads` neighbours hold a copy.
ParameterSpec copied_kv(ParameterSpec spec, int kv_heads, const TensorShard& cut) {
  const int neighbours = cut.size / kv_heads;
  spec = TensorShard{.rank = cut.rank / neighbours, .size = kv_heads}.cut(std::move(spec), 0);
  spec.copies = Copies::kv;
  spec.counted = cut.rank % neighbours == 0;
  return spec;
}

// q, k and v side by side, if nothing needs one of them apart.
ColumnLinear make_qkv(ParameterGroup& group, const std::string& name, const AttentionConfig& c,
                      std::shared_ptr<const TensorGroup> tp) {
  const TensorShard& cut = tp->cut();
  const bool copied = c.kv_heads % cut.size != 0;
  const LinearPart q = part_of(name, ".q", c.heads, c);
  const LinearPart k = part_of(name, ".k", c.kv_heads, c), v = part_of(name, ".v", c.kv_heads, c);
  std::vector<Linear> blocks;
  const auto add = [&](const std::vector<LinearPart>& parts, bool copies) {
    blocks.emplace_back(group, c.hidden, parts, c.qkv_bias, c.init_std, [&](ParameterSpec spec) {
      return copies ? copied_kv(std::move(spec), static_cast<int>(c.kv_heads), cut)
                    : cut.cut(std::move(spec), 0);
    });
  };
  if (norms_rows(c)) {
    add({q}, false);
    add({k}, copied);
    add({v}, copied);
  } else if (copied) {
    add({q}, false);
    add({k, v}, true);
  } else {
    add({q, k, v}, false);
  }
  return ColumnLinear(std::move(blocks), std::move(tp));
}

std::optional<Tensor> grad_of(const Weight* weight) {
  return weight == nullptr ? std::nullopt : std::optional(weight->grad_or_scratch());
}

std::optional<Tensor> factor_of(const Weight* weight, NormKind kind) {
  return weight == nullptr ? std::nullopt : std::optional(norm_factor(*weight, kind));
}

}  // namespace

std::vector<Tensor> Attention::Saved::tensors() const {
  std::vector<Tensor> result = core.tensors();
  result.insert(result.end(), {x, q_rstd, k_rstd, out});
  result.insert(result.end(), qkv.begin(), qkv.end());
  return result;
}

Attention::Attention(ParameterGroup& group, const std::string& name, const AttentionConfig& config,
                     std::shared_ptr<attention::CoreAttention> core, std::shared_ptr<const TensorGroup> tp)
    : local_(local_heads(name, config, tp->cut().size)),
      rows_(norms_rows(config)),
      core_(std::move(core)),
      qkv_(make_qkv(group, name, config, tp)),
      o_(group, config.heads * config.head_dim, {name + ".o", config.hidden}, config.o_bias,
         config.o_init_std, tp) {
  const TensorShard& cut = tp->cut();
  if (config.qk_norm != QkNorm::none) {
    const bool whole = config.qk_norm == QkNorm::whole;
    const auto add = [&](const std::string& which, int64_t heads) {
      const int64_t dim = whole ? heads * config.head_dim : config.head_dim;
      return &group.add({cut.copied(norm_spec(name + which, dim, config.qk_norm_kind))});
    };
    q_norm_ = add(".q_norm", config.heads);
    k_norm_ = add(".k_norm", config.kv_heads);
  }
  if (config.sinks) {
    sinks_ = &group.add({cut.cut(
        {.name = name + ".sinks", .shape = {config.heads}, .role = Role::norm, .norm_start = 0}, 0)});
  }
}

// q and k as the core takes them, and v: [tokens, heads | kv_heads, head_dim].
struct Attention::Heads {
  at::Tensor q, k, v;
};

Attention::Heads Attention::split_heads(const std::vector<Tensor>& qkv) const {
  const auto heads = [&](size_t tensor, int64_t first, int64_t count) {
    const Tensor& x = qkv[tensor];
    return x.view({x.size(0), x.size(1) / local_.head_dim, local_.head_dim}).narrow(1, first, count);
  };
  const size_t last = qkv.size() - 1, of_k = last == 2 ? 1 : last;
  const int64_t first_k = last == 0 ? local_.heads : 0;
  const int64_t first_v = last == 2 ? 0 : first_k + local_.kv_heads;
  return {.q = heads(0, 0, local_.heads),
          .k = heads(of_k, first_k, local_.kv_heads),
          .v = heads(last, first_v, local_.kv_heads)};
}

const Rotation& Attention::rotation(const TokenInfo& tokens) const {
  return tokens.ropes.at(static_cast<size_t>(local_.rope));
}

Tensor Attention::rotated_dims(const Tensor& heads) const {
  return local_.rotary_dim == 0 ? heads : heads.narrow(2, 0, local_.rotary_dim);
}

Tensor Attention::norm_rows(const Tensor& heads, const Weight& weight, Tensor& rstd) const {
  const Tensor x = heads.view({-1, weight.compute.size(0)});
  Tensor y = at::empty_like(x);
  rstd = at::empty({x.size(0)}, x.options().dtype(at::kFloat));
  kernels::rms_norm(x, norm_factor(weight, local_.qk_norm_kind), local_.norm_eps, y, rstd);
  return y.view(heads.sizes());
}

// With rotation, in one kernel.
Attention::Heads Attention::norm_heads(const Heads& heads, const TokenInfo& tokens, Saved& saved) const {
  const auto f32 = heads.q.options().dtype(at::kFloat);
  const int64_t rows = heads.q.size(0);
  const Heads to{.q = at::empty(heads.q.sizes(), heads.q.options()),
                 .k = at::empty(heads.k.sizes(), heads.k.options()),
                 .v = heads.v};
  saved.q_rstd = at::empty({rows, local_.heads}, f32);
  saved.k_rstd = at::empty({rows, local_.kv_heads}, f32);
  const NormKind kind = local_.qk_norm_kind;
  const Rotation& rope = rotation(tokens);
  kernels::norm_rope({{.x = heads.q, .y = to.q, .weight = factor_of(q_norm_, kind), .rstd = saved.q_rstd},
                      {.x = heads.k, .y = to.k, .weight = factor_of(k_norm_, kind), .rstd = saved.k_rstd}},
                     local_.norm_eps, rope.table, tokens.rows_of(rope));
  return to;
}

Attention::Heads Attention::prepare(const TokenInfo& tokens, Saved& saved) const {
  Heads heads = split_heads(saved.qkv);
  if (rows_) {
    heads.q = norm_rows(heads.q, *q_norm_, saved.q_rstd);
    heads.k = norm_rows(heads.k, *k_norm_, saved.k_rstd);
  } else if (local_.qk_norm == QkNorm::head) {
    return norm_heads(heads, tokens, saved);
  }
  if (local_.rope < 0) return heads;
  std::vector<kernels::HeadsPart> parts;
  const auto turn = [&](const Tensor& x) { parts.push_back({.x = rotated_dims(x), .y = rotated_dims(x)}); };
  if (saved.qkv.size() == 1) {
    turn(saved.qkv[0]
             .view({heads.q.size(0), -1, local_.head_dim})
             .narrow(1, 0, local_.heads + local_.kv_heads));
  } else {
    turn(heads.q);
    turn(heads.k);
  }
  const Rotation& rope = rotation(tokens);
  kernels::norm_rope(parts, 0, rope.table, tokens.rows_of(rope));
  return heads;
}

Tensor Attention::forward(const Tensor& x, const TokenInfo& tokens, Saved& saved) const {
  const int64_t rows = tokens.positions.size(0);
  saved.x = x;
  saved.qkv = qkv_.forward(x, rows);
  const Heads heads = prepare(tokens, saved);
  saved.out = core_
                  ->forward({.q = heads.q,
                             .k = heads.k,
                             .v = heads.v,
                             .documents = tokens.segments,
                             .split = tokens.context,
                             .scale = local_.scale,
                             .softcap = local_.softcap,
                             .window = local_.window,
                             .sinks = sinks_ == nullptr ? Tensor() : sinks_->compute,
                             .computed_again = tokens.computed_again},
                            saved.core)
                  .view({rows, o_.in_features()});
  return o_.forward(saved.out);
}

void Attention::turn_back(const std::vector<Tensor>& heads, const TokenInfo& tokens) const {
  if (local_.rope < 0) return;
  std::vector<kernels::HeadsGradient> parts;
  for (const Tensor& x : heads) parts.push_back({.dy = rotated_dims(x), .dx = rotated_dims(x)});
  const Rotation& rope = rotation(tokens);
  kernels::norm_rope_backward(parts, rope.table, tokens.rows_of(rope));
}

void Attention::norm_heads_back(const Saved& saved, const attention::Gradients& grads,
                                const TokenInfo& tokens, const Tensor& dq, const Tensor& dk) {
  const Heads heads = split_heads(saved.qkv);
  const Rotation& rope = rotation(tokens);
  kernels::norm_rope_backward({{.dy = grads.dk,
                                .dx = dk,
                                .x = heads.k,
                                .weight = factor_of(k_norm_, local_.qk_norm_kind),
                                .rstd = saved.k_rstd,
                                .weight_grad = grad_of(k_norm_)},
                               {.dy = grads.dq,
                                .dx = dq,
                                .x = heads.q,
                                .weight = factor_of(q_norm_, local_.qk_norm_kind),
                                .rstd = saved.q_rstd,
                                .weight_grad = grad_of(q_norm_)}},
                              rope.table, tokens.rows_of(rope));
}

Tensor Attention::fused_gradient(const Saved& saved, const attention::Gradients& grads,
                                 const TokenInfo& tokens) {
  if (local_.qk_norm == QkNorm::head) {
    norm_heads_back(saved, grads, tokens, grads.dq, grads.dk);
  } else {
    turn_back({grads.fused.narrow(1, 0, local_.heads + local_.kv_heads)}, tokens);
  }
  return grads.fused.flatten(1);
}

// dy: [tokens, heads, head_dim]; x: [tokens, heads * head_dim].
Tensor Attention::norm_rows_back(const Tensor& dy, const Tensor& x, const Tensor& rstd,
                                 Weight& weight) const {
  const std::array<int64_t, 2> rows{-1, weight.compute.size(0)};
  Tensor dx = kernels::contiguous(dy).view(rows), weight_grad = weight.grad_or_scratch();
  kernels::rms_norm_backward(dx, x.view(rows), norm_factor(weight, local_.qk_norm_kind), rstd, std::nullopt,
                             dx, weight_grad);
  return dx.view(x.sizes());
}

std::vector<Tensor> Attention::rows_gradient(const Saved& saved, const attention::Gradients& grads,
                                             const TokenInfo& tokens) {
  turn_back({grads.dq, grads.dk}, tokens);
  return {norm_rows_back(grads.dq, saved.qkv[0], saved.q_rstd, *q_norm_),
          norm_rows_back(grads.dk, saved.qkv[1], saved.k_rstd, *k_norm_),
          kernels::contiguous(grads.dv).flatten(1)};
}

std::vector<Tensor> Attention::qkv_gradient(const Saved& saved, const attention::Gradients& grads,
                                            const TokenInfo& tokens) {
  if (rows_) return rows_gradient(saved, grads, tokens);
  if (grads.fused.defined() && saved.qkv.size() == 1) return {fused_gradient(saved, grads, tokens)};
  // Without QK-norm nothing reads q and k again, so that the gradient takes their place.
  std::vector<Tensor> dqkv = saved.qkv;
  if (local_.qk_norm == QkNorm::head) {
    for (Tensor& part : dqkv) part = at::empty_like(part);
  }
  const Heads to = split_heads(dqkv);
  kernels::copy(grads.dv, to.v);
  if (local_.qk_norm == QkNorm::head) {
    norm_heads_back(saved, grads, tokens, to.q, to.k);
  } else if (local_.rope >= 0 && local_.rotary_dim == 0) {
    const Rotation& rope = rotation(tokens);
    kernels::norm_rope_backward({{.dy = grads.dk, .dx = to.k}, {.dy = grads.dq, .dx = to.q}}, rope.table,
                                tokens.rows_of(rope));
  } else {
    turn_back({grads.dk, grads.dq}, tokens);
    kernels::copy(grads.dq, to.q);
    kernels::copy(grads.dk, to.k);
  }
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
    if (is_learning(sinks_)) kernels::add(sinks_->grad, grads.dsinks);
    dqkv = qkv_gradient(saved, grads, tokens);
  }
  Tensor x = std::move(saved.x);
  saved = {};
  return qkv_.backward(std::move(x), std::move(dqkv), queue);
}

}  // namespace pptrain::nn

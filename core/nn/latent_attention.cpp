#include "core/nn/latent_attention.h"

#include <ATen/core/IListRef.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <spdlog/fmt/fmt.h>

#include <utility>

#include "core/base/error.h"
#include "core/kernels/dry_run.h"
#include "core/kernels/kernels.h"

namespace pptrain::nn {
namespace {

using at::Tensor;

LatentAttentionConfig local_heads(const std::string& name, const LatentAttentionConfig& config, int size) {
  const LatentAttentionConfig& c = config;
  if (c.heads <= 0 || c.kv_rank <= 0 || c.nope_dim <= 0 || c.rope_dim <= 0 || c.rope_dim % 2 != 0 ||
      c.v_dim <= 0 || c.v_dim > c.nope_dim + c.rope_dim) {
    throw Error(fmt::format(
        "{}: {} heads of {} + {} elements with values of {} and keys from {}: all must be positive, "
        "the rotated elements even, and values no wider than keys",
        name, c.heads, c.nope_dim, c.rope_dim, c.v_dim, c.kv_rank));
  }
  if (c.heads % size != 0) {
    throw Error(fmt::format("{}: {} tensor-parallel ranks must divide {} heads", name, size, c.heads));
  }
  LatentAttentionConfig local = config;
  local.heads = config.heads / size;
  return local;
}

// A linear layer of x's own rows, so that each rank has a copy.
Linear copied_linear(ParameterGroup& group, const LinearPart& part, const LatentAttentionConfig& c,
                     const TensorShard& cut) {
  return Linear(group, c.hidden, {part}, c.bias, c.init_std,
                [&](ParameterSpec spec) { return cut.copied(std::move(spec)); });
}

std::optional<Linear> make_q_a(ParameterGroup& group, const std::string& name, const LatentAttentionConfig& c,
                               const TensorShard& cut) {
  if (c.q_rank == 0) return std::nullopt;
  return copied_linear(group, {name + ".q_a", c.q_rank}, c, cut);
}

std::optional<Norm> make_q_norm(ParameterGroup& group, const std::string& name,
                                const LatentAttentionConfig& c, const TensorShard& cut) {
  if (c.q_rank == 0) return std::nullopt;
  return Norm(group, name + ".q_a_norm", c.q_rank, NormKind::rms, c.norm_eps, cut);
}

ColumnLinear make_q(ParameterGroup& group, const std::string& name, const LatentAttentionConfig& c,
                    std::shared_ptr<const TensorGroup> tp) {
  const bool narrow = c.q_rank != 0;
  return ColumnLinear(group, narrow ? c.q_rank : c.hidden,
                      {{name + (narrow ? ".q_b" : ".q"), c.heads * (c.nope_dim + c.rope_dim)}},
                      /*bias=*/false, c.init_std, std::move(tp));
}

// Pairs (2i, 2i + 1) of the last dim as (i, i + dim / 2): a view [..., 2, dim / 2].
Tensor pairs(const Tensor& x) {
  return x.unflatten(-1, {x.size(-1) / 2, 2}).transpose(-1, -2);
}

// The sum over heads of x: T [tokens, heads, dim] -> T [tokens, 1, dim]. The second half of the heads is
// added to the first one until one is left: in one order on every device, and on any number of threads.
Tensor sum_heads(const Tensor& x) {
  const Tensor sum = at::empty(x.sizes(), x.options().dtype(at::kFloat));
  kernels::copy(x, sum);
  int64_t heads = x.size(1);
  while (heads > 1) {
    const int64_t half = heads / 2, rest = heads - half;
    sum.narrow(1, 0, half).add_(sum.narrow(1, rest, half));
    heads = rest;
  }
  kernels::record(kernels::moving(sum, sum));
  return sum.narrow(1, 0, 1).to(x.scalar_type(), /*non_blocking=*/false, /*copy=*/true,
                                at::MemoryFormat::Contiguous);
}

}  // namespace

std::vector<Tensor> LatentAttention::Saved::tensors() const {
  std::vector<Tensor> result = core.tensors();
  result.insert(result.end(), {x, q_norm.x, q_norm.rstd, kv_norm.x, kv_norm.rstd, q_latent, kv_latent, out});
  return result;
}

LatentAttention::LatentAttention(ParameterGroup& group, const std::string& name,
                                 const LatentAttentionConfig& config,
                                 std::shared_ptr<attention::CoreAttention> core,
                                 std::shared_ptr<const TensorGroup> tp)
    : config_(local_heads(name, config, tp->cut().size)),
      core_(std::move(core)),
      tp_(std::move(tp)),
      q_a_(make_q_a(group, name, config, tp_->cut())),
      q_norm_(make_q_norm(group, name, config, tp_->cut())),
      q_(make_q(group, name, config, tp_)),
      kv_a_(copied_linear(group, {name + ".kv_a", config.kv_rank + config.rope_dim}, config, tp_->cut())),
      kv_norm_(group, name + ".kv_a_norm", config.kv_rank, NormKind::rms, config.norm_eps, tp_->cut()),
      kv_b_(group, config.kv_rank, {{name + ".kv_b", config.heads * (config.nope_dim + config.v_dim)}},
            /*bias=*/false, config.init_std, tp_),
      o_(group, config.heads * config.v_dim, {name + ".o", config.hidden}, config.bias, config.o_init_std,
         tp_) {}

Tensor LatentAttention::project_queries(const Tensor& x, int64_t rows, Saved& saved) const {
  Tensor from = x;
  if (q_a_) {
    saved.q_latent = q_norm_->forward(q_a_->forward(x), {}, saved.q_norm);
    from = saved.q_latent;
  }
  return q_.forward(from, rows)[0].view({rows, config_.heads, qk_dim()});
}

void LatentAttention::rotate(const std::vector<Tensor>& heads, const TokenInfo& tokens) const {
  std::vector<kernels::HeadsPart> parts;
  for (const Tensor& x : heads) {
    parts.push_back({.x = x, .y = x});
    if (config_.interleaved) parts.back().x = pairs(x).flatten(-2);
    if (config_.interleaved) kernels::record(kernels::moving(x, x));
  }
  const Rotation& rope = tokens.ropes.front();
  kernels::norm_rope(parts, 0, rope.table, tokens.rows_of(rope));
}

void LatentAttention::rotate_back(const Tensor& dy, const Tensor& dx, const TokenInfo& tokens) const {
  const Tensor to = config_.interleaved ? at::empty(dy.sizes(), dy.options()) : dx;
  const Rotation& rope = tokens.ropes.front();
  kernels::norm_rope_backward({{.dy = dy, .dx = to}}, rope.table, tokens.rows_of(rope));
  if (config_.interleaved) kernels::copy(to.unflatten(-1, {2, to.size(-1) / 2}), pairs(dx));
}

void LatentAttention::expand(const Tensor& kv, const Tensor& key, attention::AttentionCall& call) const {
  const int64_t heads = config_.heads, nope = config_.nope_dim, v = config_.v_dim;
  const Tensor both = at::empty({kv.size(0), 2 * heads, qk_dim()}, kv.options());
  call.k = both.narrow(1, 0, heads);
  call.v = both.narrow(1, heads, heads);
  kernels::copy(kv.narrow(2, 0, nope), call.k.narrow(2, 0, nope));
  kernels::copy(key.expand({-1, heads, -1}), call.k.narrow(2, nope, config_.rope_dim));
  kernels::copy(kv.narrow(2, nope, v), call.v.narrow(2, 0, v));
  call.v.narrow(2, v, qk_dim() - v).zero_();
}

Tensor LatentAttention::forward(const Tensor& x, const TokenInfo& tokens, Saved& saved) const {
  const int64_t rows = tokens.positions.size(0), nope = config_.nope_dim, rope = config_.rope_dim;
  saved.x = x;
  attention::AttentionCall call{.q = project_queries(x, rows, saved), .k = {}, .v = {}};
  {
    const Tensor narrow = kv_a_.forward(x);
    saved.kv_latent =
        kv_norm_.forward(kernels::contiguous(narrow.narrow(1, 0, config_.kv_rank)), {}, saved.kv_norm);
    const Tensor key =
        tp_->enter(kernels::contiguous(narrow.narrow(1, config_.kv_rank, rope)), rows).view({rows, 1, rope});
    rotate({call.q.narrow(2, nope, rope), key}, tokens);
    const Tensor kv = kv_b_.forward(saved.kv_latent, rows)[0];
    expand(kv.view({rows, config_.heads, nope + config_.v_dim}), key, call);
  }
  call.documents = tokens.segments;
  call.split = tokens.context;
  call.computed_again = tokens.computed_again;
  call.scale = config_.scale;
  const Tensor out = core_->forward(std::move(call), saved.core);
  saved.out = kernels::contiguous(out.narrow(2, 0, config_.v_dim)).view({rows, o_.in_features()});
  return o_.forward(saved.out);
}

Tensor LatentAttention::query_gradient(const Tensor& dq, const TokenInfo& tokens) const {
  const Tensor to = at::empty(dq.sizes(), dq.options());
  const int64_t nope = config_.nope_dim, rope = config_.rope_dim;
  kernels::copy(dq.narrow(2, 0, nope), to.narrow(2, 0, nope));
  rotate_back(dq.narrow(2, nope, rope), to.narrow(2, nope, rope), tokens);
  return to.flatten(1);
}

Tensor LatentAttention::kv_gradient(const attention::Gradients& grads) const {
  const int64_t nope = config_.nope_dim, v = config_.v_dim;
  const Tensor to = at::empty({grads.dk.size(0), config_.heads, nope + v}, grads.dk.options());
  kernels::copy(grads.dk.narrow(2, 0, nope), to.narrow(2, 0, nope));
  kernels::copy(grads.dv.narrow(2, 0, v), to.narrow(2, nope, v));
  return to.flatten(1);
}

Tensor LatentAttention::key_gradient(const Tensor& dk, const TokenInfo& tokens) const {
  const Tensor sum = sum_heads(dk.narrow(2, config_.nope_dim, config_.rope_dim));
  const Tensor dkey = at::empty(sum.sizes(), sum.options());
  rotate_back(sum, dkey, tokens);
  return tp_->leave(dkey.flatten(1));
}

Tensor LatentAttention::queries_backward(Saved& saved, Tensor dq, WeightGradQueue& queue) {
  std::vector<Tensor> dy{std::move(dq)};
  if (!q_a_) return q_.backward(saved.x, std::move(dy), queue);
  Tensor narrow = q_.backward(std::move(saved.q_latent), std::move(dy), queue);
  narrow = q_norm_->backward(saved.q_norm, narrow, {});
  saved.q_norm = {};
  queue.push(*q_a_, {saved.x, narrow});
  return q_a_->backward_input(narrow);
}

Tensor LatentAttention::keys_backward(Saved& saved, Tensor dkv, const Tensor& dkey, WeightGradQueue& queue) {
  std::vector<Tensor> dy{std::move(dkv)};
  Tensor dlatent = kv_b_.backward(std::move(saved.kv_latent), std::move(dy), queue);
  dlatent = kv_norm_.backward(saved.kv_norm, dlatent, {});
  saved.kv_norm = {};
  const Tensor narrow = at::cat({dlatent, dkey}, 1);
  kernels::record(kernels::moving(narrow, narrow));
  queue.push(kv_a_, {saved.x, narrow});
  return kv_a_.backward_input(narrow);
}

Tensor LatentAttention::backward_input(Saved& saved, const Tensor& dy, const TokenInfo& tokens,
                                       WeightGradQueue& queue) {
  const int64_t rows = tokens.positions.size(0), v = config_.v_dim;
  Tensor dq, dkv, dkey;
  {
    const Tensor dout = at::empty({rows, config_.heads, qk_dim()}, dy.options());
    kernels::copy(o_.backward(std::move(saved.out), dy, queue).view({rows, config_.heads, v}),
                  dout.narrow(2, 0, v));
    dout.narrow(2, v, qk_dim() - v).zero_();
    const attention::Gradients grads = core_->backward(dout, std::move(saved.core));
    dq = query_gradient(grads.dq, tokens);
    dkv = kv_gradient(grads);
    dkey = key_gradient(grads.dk, tokens);
  }
  Tensor dx = queries_backward(saved, std::move(dq), queue);
  const Tensor by_keys = keys_backward(saved, std::move(dkv), dkey, queue);
  saved = {};
  kernels::add(dx, by_keys);
  return dx;
}

}  // namespace pptrain::nn

#include "parallel/context/ulysses_attention.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <utility>

#include "core/kernels/dry_run.h"
#include "parallel/context/head_exchange.h"
#include "parallel/context/shared_tokens.h"

namespace pptrain::context {
namespace {

using at::Tensor;

// The fused heads of one rank: [..., q | k | v, head_dim].
struct Parts {
  int64_t heads, kv_heads;

  int64_t width() const { return heads + 2 * kv_heads; }
  Tensor q(const Tensor& x) const { return x.narrow(-2, 0, heads); }
  Tensor k(const Tensor& x) const { return x.narrow(-2, heads, kv_heads); }
  Tensor v(const Tensor& x) const { return x.narrow(-2, heads + kv_heads, kv_heads); }
};

// [tokens, ranks * heads, head_dim] as [ranks, tokens, heads, head_dim].
Tensor by_rank(const Tensor& x, int64_t ranks) {
  return x.unflatten(1, {ranks, x.size(1) / ranks}).transpose(0, 1);
}

// And back, contiguous.
Tensor joined(const Tensor& x) {
  return x.transpose(0, 1).reshape({x.size(1), x.size(0) * x.size(2), x.size(3)}).contiguous();
}

// to[rank] <- the key-value heads x [tokens, kv_heads, head_dim] that the rank needs.
void copy_kv_heads(const Tensor& x, const HeadShares& shares, const Tensor& to) {
  for (size_t r = 0; r < shares.kv_heads.size(); ++r) {
    const auto& heads = shares.kv_heads[r];
    for (size_t i = 0; i < heads.size(); ++i) {
      to.select(0, static_cast<int64_t>(r)).select(1, static_cast<int64_t>(i)).copy_(x.select(1, heads[i]));
    }
  }
}

// What ranks found for key-value heads of this rank's tokens: from[rank] [tokens, heads of the rank,
// head_dim]
// -> T [tokens, kv_heads, head_dim].
Tensor sum_kv_heads(const Tensor& from, const HeadShares& shares, int64_t kv_heads) {
  const auto ranks = static_cast<int64_t>(shares.kv_heads.size());
  if (shares.kv_heads_each() * ranks == kv_heads) return joined(from);
  const Tensor sum = at::zeros({from.size(1), kv_heads, from.size(3)}, from.options().dtype(at::kFloat));
  for (int64_t r = 0; r < ranks; ++r) {
    const auto& heads = shares.kv_heads[static_cast<size_t>(r)];
    for (size_t i = 0; i < heads.size(); ++i) {
      sum.select(1, heads[i]).add_(from.select(0, r).select(1, static_cast<int64_t>(i)));
    }
  }
  return sum.to(from.scalar_type());
}

class UlyssesAttention final : public nn::AttentionProduct {
 public:
  UlyssesAttention(comm::Communicator& group, nn::AttentionOptions options)
      : group_(group), options_(options), local_(nn::make_local_attention(options)) {}

  Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v, const nn::TokenInfo& tokens,
                 Saved& saved) override {
    if (!tokens.context) return local_->forward(q, k, v, tokens, saved);
    check_shared_tokens(group_, tokens, q);
    const HeadShares shares = share_heads(q.size(1), k.size(1), group_.size());
    const Parts parts{.heads = shares.heads, .kv_heads = shares.kv_heads_each()};
    const HeadExchange exchange(group_, *tokens.context);
    const Tensor all = [&] {
      const Tensor sent = at::empty({group_.size(), q.size(0), parts.width(), q.size(2)}, q.options());
      parts.q(sent).copy_(by_rank(q, group_.size()));
      copy_kv_heads(k, shares, parts.k(sent));
      copy_kv_heads(v, shares, parts.v(sent));
      kernels::record(kernels::moving(q, k, v, sent));
      return exchange.to_heads(sent);
    }();
    saved = {.q = parts.q(all),
             .k = parts.k(all),
             .v = parts.v(all),
             .out = {},
             .statistics = {},
             .kv_heads = k.size(1)};
    saved.out = nn::causal_attention(saved.q, saved.k, saved.v, tokens.segments, saved.statistics, options_);
    const Tensor out = joined(exchange.to_tokens(saved.out));
    kernels::record(kernels::moving(out, out));
    return out;
  }

  nn::AttentionGradients backward(const Tensor& dout, const nn::TokenInfo& tokens, Saved saved) override {
    if (!tokens.context) return local_->backward(dout, tokens, std::move(saved));
    const HeadShares shares = share_heads(dout.size(1), saved.kv_heads, group_.size());
    const Parts parts{.heads = shares.heads, .kv_heads = shares.kv_heads_each()};
    const HeadExchange exchange(group_, *tokens.context);
    const Tensor found = exchange.to_tokens(gradients(exchange, parts, dout, tokens, saved));
    const nn::AttentionGradients grads{.dq = joined(parts.q(found)),
                                       .dk = sum_kv_heads(parts.k(found), shares, saved.kv_heads),
                                       .dv = sum_kv_heads(parts.v(found), shares, saved.kv_heads)};
    kernels::record(kernels::moving(found, grads.dq, grads.dk, grads.dv));
    return grads;
  }

 private:
  // Of this rank's heads, over all tokens: [all tokens, q | k | v, head_dim].
  Tensor gradients(const HeadExchange& exchange, const Parts& parts, const Tensor& dout,
                   const nn::TokenInfo& tokens, const Saved& saved) const {
    const Tensor sent = by_rank(dout, group_.size()).contiguous();
    const Tensor all_dout = exchange.to_heads(sent);
    const nn::AttentionGradients grads = nn::causal_attention_backward(
        all_dout, saved.q, saved.k, saved.v, tokens.segments, saved.out, saved.statistics);
    kernels::record(kernels::moving(dout, sent));
    if (grads.fused.defined()) return grads.fused;
    const Tensor all = at::empty({all_dout.size(0), parts.width(), dout.size(2)}, dout.options());
    parts.q(all).copy_(grads.dq);
    parts.k(all).copy_(grads.dk);
    parts.v(all).copy_(grads.dv);
    kernels::record(kernels::moving(all, all));
    return all;
  }

  comm::Communicator& group_;
  nn::AttentionOptions options_;
  std::shared_ptr<nn::AttentionProduct> local_;
};

}  // namespace

std::shared_ptr<nn::AttentionProduct> make_ulysses_attention(comm::Communicator& group,
                                                             nn::AttentionOptions options) {
  return std::make_shared<UlyssesAttention>(group, options);
}

}  // namespace pptrain::context

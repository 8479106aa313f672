#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "core/kernels/dry_run.h"
#include "parallel/axes/context/context_attention.h"
#include "parallel/axes/context/plans.h"
#include "parallel/comm/hand_over.h"

namespace pptrain::context {
namespace {

using at::Tensor;
using attention::AttentionCall;
using attention::CoreAttention;
using attention::Gradients;
using attention::Saved;
using KvShares = std::vector<std::vector<int64_t>>;  // share_kv_heads()

// --- The exchange: ranks with some tokens of all heads become ranks with all tokens of some heads, and back
// ---

// Calls f(row among the ranks' rows one after the other, range) for every range of every rank.
template <class F>
void for_ranges(const tokens::ContextSplit& split, F f) {
  int64_t row = 0;
  for (const auto& ranges : split.ranges) {
    for (const tokens::TokenRange& range : ranges) {
      f(row, range);
      row += range.length();
    }
  }
}

// Exchanges [tokens of this rank, ...] for [tokens of all ranks, ...] in the order of the whole list, and
// back. The group's ranks are the split's; both must outlive the exchange.
class HeadExchange {
 public:
  HeadExchange(comm::Communicator& group, const tokens::ContextSplit& split) : group_(group), split_(split) {}

  // by_rank: [ranks, own tokens, width, head_dim], contiguous: what each rank is to get of this rank's
  // tokens. Returns [all tokens, width, head_dim].
  Tensor to_heads(const Tensor& by_rank) const {
    const int64_t row = by_rank.size(2) * by_rank.size(3);
    const std::vector<int64_t> from = elements_by_rank(row);
    const std::vector<int64_t> to(from.size(), by_rank.size(1) * row);
    const int64_t all = std::accumulate(from.begin(), from.end(), int64_t{0}) / row;
    Tensor received = at::empty({all, by_rank.size(2), by_rank.size(3)}, by_rank.options());
    comm::wait_in_pass(*group_.iall_to_all(received, from, by_rank, to),
                       [] { return "tokens of the heads of Ulysses attention"; });
    return in_list_order(std::move(received));
  }

  // all: [all tokens, width, head_dim] -> [ranks, own tokens, width, head_dim], by the rank that sent it.
  Tensor to_tokens(const Tensor& all) const {
    const Tensor sent = in_rank_order(all);
    const int64_t row = all.size(1) * all.size(2);
    const int64_t own = split_.tokens(split_.part);
    const std::vector<int64_t> to = elements_by_rank(row);
    const std::vector<int64_t> from(to.size(), own * row);
    Tensor by_rank = at::empty({split_.parts(), own, all.size(1), all.size(2)}, all.options());
    comm::wait_in_pass(*group_.iall_to_all(by_rank, from, sent, to),
                       [] { return "heads of the tokens of Ulysses attention"; });
    return by_rank;
  }

 private:
  // Elements of each rank's tokens, with `row` elements a token.
  std::vector<int64_t> elements_by_rank(int64_t row) const {
    std::vector<int64_t> elements;
    for (int r = 0; r < split_.parts(); ++r) elements.push_back(split_.tokens(r) * row);
    return elements;
  }

  bool ranks_are_in_order() const {
    bool same = true;
    for_ranges(split_,
               [&](int64_t row, const tokens::TokenRange& range) { same = same && row == range.begin; });
    return same;
  }

  // Between rows by rank and rows in the order of the list; the argument itself if these are the same.
  Tensor in_list_order(Tensor by_rank) const {
    if (ranks_are_in_order()) return by_rank;
    Tensor listed = at::empty_like(by_rank);
    for_ranges(split_, [&](int64_t row, const tokens::TokenRange& range) {
      listed.narrow(0, range.begin, range.length()).copy_(by_rank.narrow(0, row, range.length()));
    });
    kernels::record(kernels::moving(by_rank, listed));
    return listed;
  }
  Tensor in_rank_order(const Tensor& listed) const {
    if (ranks_are_in_order()) return listed.contiguous();
    Tensor by_rank = at::empty(listed.sizes(), listed.options());
    for_ranges(split_, [&](int64_t row, const tokens::TokenRange& range) {
      by_rank.narrow(0, row, range.length()).copy_(listed.narrow(0, range.begin, range.length()));
    });
    kernels::record(kernels::moving(listed, by_rank));
    return by_rank;
  }

  comm::Communicator& group_;
  const tokens::ContextSplit& split_;
};

// --- Attention between two exchanges ---

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

// The inverse, contiguous.
Tensor joined(const Tensor& x) {
  return x.transpose(0, 1).reshape({x.size(1), x.size(0) * x.size(2), x.size(3)}).contiguous();
}

// to[rank] <- the key-value heads x [tokens, kv_heads, head_dim] that the rank needs.
void copy_kv_heads(const Tensor& x, const KvShares& shares, const Tensor& to) {
  for (size_t r = 0; r < shares.size(); ++r) {
    const auto& heads = shares[r];
    for (size_t i = 0; i < heads.size(); ++i) {
      to.select(0, static_cast<int64_t>(r)).select(1, static_cast<int64_t>(i)).copy_(x.select(1, heads[i]));
    }
  }
}

// Sums what ranks found for key-value heads of this rank's tokens: from[rank] [tokens, heads of the rank,
// head_dim] -> T [tokens, kv_heads, head_dim].
Tensor sum_kv_heads(const Tensor& from, const KvShares& shares, int64_t kv_heads) {
  const auto ranks = std::ssize(shares);
  if (from.size(2) * ranks == kv_heads) return joined(from);
  const Tensor sum = at::zeros({from.size(1), kv_heads, from.size(3)}, from.options().dtype(at::kFloat));
  for (int64_t r = 0; r < ranks; ++r) {
    const auto& heads = shares[static_cast<size_t>(r)];
    for (size_t i = 0; i < heads.size(); ++i) {
      sum.select(1, heads[i]).add_(from.select(0, r).select(1, static_cast<int64_t>(i)));
    }
  }
  return sum.to(from.scalar_type());
}

class UlyssesAttention final : public CoreAttention {
 public:
  UlyssesAttention(comm::Communicator& group, bool deterministic)
      : group_(group),
        deterministic_(deterministic),
        local_(attention::make_local_attention(deterministic)) {}

  Tensor forward(AttentionCall call, Saved& saved) override {
    if (!call.split) return local_->forward(std::move(call), saved);
    attention::require_taken(attention::BackEnd::ulysses, call);
    check_split(call, group_.rank(), group_.size());
    const int64_t kv_heads = call.k.size(1);
    const KvShares shares = share_kv_heads(call.q.size(1), kv_heads, group_.size());
    const Parts parts = parts_of(call.q.size(1), shares);
    const HeadExchange exchange(group_, *call.split);
    const Tensor all = exchange_operands(exchange, parts, shares, call);
    AttentionCall of_heads = call;
    of_heads.q = parts.q(all);
    of_heads.k = parts.k(all);
    of_heads.v = parts.v(all);
    if (call.sinks.defined()) of_heads.sinks = own_heads(call.sinks);
    of_heads.split = nullptr;
    of_heads.deterministic = deterministic_;
    attention::attend(std::move(of_heads), saved);
    saved.call.split = call.split;  // the backward pass exchanges again
    saved.kv_heads = kv_heads;
    const Tensor out = joined(exchange.to_tokens(saved.out));
    kernels::record(kernels::moving(out, out));
    return out;
  }

  Gradients backward(const Tensor& dout, Saved saved) override {
    if (!saved.call.split) return local_->backward(dout, std::move(saved));
    const KvShares shares = share_kv_heads(dout.size(1), saved.kv_heads, group_.size());
    const Parts parts = parts_of(dout.size(1), shares);
    const HeadExchange exchange(group_, *saved.call.split);
    Gradients of_heads = gradients(exchange, parts, dout, saved);
    const Tensor found = exchange.to_tokens(of_heads.fused);
    const Tensor dsinks = of_heads.dsinks;
    of_heads = {};
    Gradients grads{.dq = joined(parts.q(found)),
                    .dk = sum_kv_heads(parts.k(found), shares, saved.kv_heads),
                    .dv = sum_kv_heads(parts.v(found), shares, saved.kv_heads)};
    kernels::record(kernels::moving(found, grads.dq, grads.dk, grads.dv));
    if (dsinks.defined()) {
      grads.dsinks = at::zeros({dout.size(1)}, dsinks.options());
      own_heads(grads.dsinks).copy_(dsinks);
    }
    return grads;
  }

 private:
  // x: [heads] -> a view of this rank's heads.
  Tensor own_heads(const Tensor& x) const {
    const int64_t heads = x.size(0) / group_.size();
    return x.narrow(0, group_.rank() * heads, heads);
  }

  // The parts of one rank; `heads`: query heads of all ranks.
  Parts parts_of(int64_t heads, const KvShares& shares) const {
    return {.heads = heads / group_.size(), .kv_heads = std::ssize(shares.front())};
  }

  // q, k and v of this rank's heads, over all tokens: [all tokens, q | k | v, head_dim].
  Tensor exchange_operands(const HeadExchange& exchange, const Parts& parts, const KvShares& shares,
                           const AttentionCall& c) const {
    const Tensor sent = at::empty({group_.size(), c.q.size(0), parts.width(), c.q.size(2)}, c.q.options());
    parts.q(sent).copy_(by_rank(c.q, group_.size()));
    copy_kv_heads(c.k, shares, parts.k(sent));
    copy_kv_heads(c.v, shares, parts.v(sent));
    kernels::record(kernels::moving(c.q, c.k, c.v, sent));
    return exchange.to_heads(sent);
  }

  // Gradients of this rank's heads, over all tokens, with all of q, k and v as `fused`.
  Gradients gradients(const HeadExchange& exchange, const Parts& parts, const Tensor& dout,
                      const Saved& saved) const {
    const Tensor sent = by_rank(dout, group_.size()).contiguous();
    const Tensor all_dout = exchange.to_heads(sent);
    Gradients grads = attention::attend_backward(all_dout, saved);
    kernels::record(kernels::moving(dout, sent));
    if (grads.fused.defined()) return grads;
    const Tensor all = at::empty({all_dout.size(0), parts.width(), dout.size(2)}, dout.options());
    parts.q(all).copy_(grads.dq);
    parts.k(all).copy_(grads.dk);
    parts.v(all).copy_(grads.dv);
    kernels::record(kernels::moving(all, all));
    grads.fused = all;
    return grads;
  }

  comm::Communicator& group_;
  bool deterministic_;
  std::shared_ptr<CoreAttention> local_;
};

}  // namespace

std::shared_ptr<CoreAttention> make_ulysses_attention(comm::Communicator& group, bool deterministic) {
  return std::make_shared<UlyssesAttention>(group, deterministic);
}

}  // namespace pptrain::context

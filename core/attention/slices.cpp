// Attention of sequence slices: the blocks of a ring of ranks (blocks.h), with keys that stay where they are.
#include <ATen/ops/zeros.h>
#include <spdlog/fmt/fmt.h>

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "core/attention/attention.h"
#include "core/attention/blocks.h"
#include "core/base/error.h"
#include "core/kernels/dry_run.h"

namespace pptrain::attention {
namespace {

using at::Tensor;

class SliceAttention final : public CoreAttention {
 public:
  SliceAttention(std::shared_ptr<CoreAttention> inner, bool deterministic)
      : inner_(std::move(inner)), deterministic_(deterministic) {}

  Tensor forward(AttentionCall call, Saved& saved) override {
    if (!is_slice(call)) return inner_->forward(std::move(call), saved);
    require_taken(BackEnd::sequence_slices, call);
    call.deterministic = deterministic_;
    call.sinks = copy_sinks(call);
    keep(call);
    PartialAttention seen = no_attention(call);
    each_slice(call, [&](const AttentionCall& with_keys, Slice& /*keys*/, const auto& blocks) {
      add_attention(with_keys, blocks, seen);
    });
    return finish_attention(std::move(call), std::move(seen), saved);
  }

  Gradients backward(const Tensor& dout, Saved saved) override {
    if (!is_slice(saved.call)) return inner_->backward(dout, std::move(saved));
    const AttentionCall& own = saved.call;
    const auto f32 = own.q.options().dtype(at::kFloat);
    const Tensor dq = at::zeros(own.q.sizes(), f32);
    each_slice(own, [&](const AttentionCall& with_keys, Slice& keys, const auto& blocks) {
      if (!keys.gradients.defined()) {
        const Tensor& k = with_keys.k;
        keys.gradients = at::zeros({2, k.size(0), k.size(1), k.size(2)}, f32);
      }
      Gradients grads{.dq = dq, .dk = keys.gradients.select(0, 0), .dv = keys.gradients.select(0, 1)};
      Saved here = saved;
      here.call = with_keys;
      add_attention_backward(dout, here, blocks, grads);
    });
    std::vector<Slice>& list = lists_.at(own.split->list);
    Gradients grads = finish_gradients(dq, list[static_cast<size_t>(own.split->part)].gradients, dout, saved);
    list.resize(static_cast<size_t>(own.split->part));
    if (list.empty()) lists_.erase(own.split->list);
    return grads;
  }

  void discard() override { lists_.clear(); }

 private:
  struct Slice {
    Tensor k, v;       // as the call's
    Tensor gradients;  // float32 [2, tokens, kv_heads, head_dim]: of k and of v, by later slices
  };

  static bool is_slice(const AttentionCall& call) { return call.split && call.split->of_slices(); }

  // Keeps the keys of the call's slice. A pass that recomputes them, for its backward pass, finds them there.
  void keep(const AttentionCall& call) {
    std::vector<Slice>& list = lists_[call.split->list];
    const auto part = static_cast<size_t>(call.split->part);
    if (part < list.size()) return;
    if (part > list.size())
      throw Error(
          fmt::format("attention: slice {} of list {} before slice {}", part, call.split->list, list.size()));
    const auto kept = [&](const Tensor& x) { return call.computed_again ? x.clone() : x; };
    list.push_back({.k = kept(call.k), .v = kept(call.v), .gradients = {}});
  }

  // Calls visit(the call with a slice's keys, the slice, blocks of the call's queries with these keys) for
  // the call's own slice, and then for earlier slices that its documents reach, the nearest first.
  template <typename Visit>
  void each_slice(const AttentionCall& call, const Visit& visit) {
    std::vector<Slice>& list = lists_.at(call.split->list);
    const auto pieces = [&](int part) { return tokens::document_pieces(*call.split, part, call.documents); };
    const auto queries = pieces(call.split->part);
    AttentionCall with_keys = call;
    with_keys.split = nullptr;
    for (int part = call.split->part; part >= 0; --part) {
      const auto blocks = tokens::attention_blocks(queries, pieces(part), call.window);
      if (blocks.empty() && part < call.split->part) continue;
      Slice& keys = list.at(static_cast<size_t>(part));
      with_keys.k = keys.k;
      with_keys.v = keys.v;
      visit(with_keys, keys, blocks);
    }
  }

  std::shared_ptr<CoreAttention> inner_;
  bool deterministic_;
  std::map<int, std::vector<Slice>>
      lists_;  // by number, from the forward pass of the first slice to its backward
};

}  // namespace

std::shared_ptr<CoreAttention> make_slice_attention(std::shared_ptr<CoreAttention> inner,
                                                    bool deterministic) {
  return std::make_shared<SliceAttention>(std::move(inner), deterministic);
}

}  // namespace pptrain::attention

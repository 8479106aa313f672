#include "core/attention/gpu.h"

#include <ATen/Context.h>
#include <ATen/ops/_efficient_attention_backward.h>
#include <ATen/ops/_efficient_attention_forward.h>
#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/sum.h>
#include <spdlog/spdlog.h>

#include <mutex>
#include <optional>
#include <string>
#include <tuple>

#include "core/attention/cudnn/cudnn_attention.h"
#include "core/kernels/device_name.h"

namespace pptrain::attention {
namespace {

using at::Tensor;
using tokens::Segments;

constexpr double kNoDropout = 0;

// How LibTorch's two libraries take documents: equal ones as a batch; unequal ones as one batch entry, or one
// list, with their starts.
struct Documents {
  const Segments& segments;
  bool equal = segments.equal_lengths();

  Tensor batch(const Tensor& x) const {
    const int64_t documents = equal ? segments.documents() : 1;
    return x.view({documents, x.size(0) / documents, x.size(1), x.size(2)});
  }
  // FlashAttention-2's variable lengths have no batch dimension.
  Tensor list(const Tensor& x) const { return equal ? batch(x) : x; }
  std::optional<Tensor> starts() const { return equal ? std::nullopt : std::optional(segments.starts); }
};

// Results of LibTorch's forward passes: the output, log-sum-exp and random numbers.
template <class Results>
void keep(const Results& results, Saved& saved) {
  saved.out = std::get<0>(results).contiguous().view(saved.call.q.sizes());
  saved.logsumexp = std::get<1>(results);
  saved.rng_seed = std::get<2>(results);
  saved.rng_offset = std::get<3>(results);
}

// --- FlashAttention-2 (Dao, arXiv 2307.08691) ---

void flash(Saved& saved) {
  const AttentionCall& c = saved.call;
  const Documents d{c.documents};
  const int64_t longest = c.documents.longest;
  keep(at::_flash_attention_forward(d.list(c.q), d.list(c.k), d.list(c.v), d.starts(), d.starts(), longest,
                                    longest, kNoDropout, /*is_causal=*/true, /*return_debug_mask=*/false,
                                    c.scale, keys_before(c)),
       saved);
}

Gradients flash_backward(const Tensor& dout, const Saved& saved) {
  const AttentionCall& c = saved.call;
  const Documents d{c.documents};
  const int64_t longest = c.documents.longest;
  const Tensor starts = d.starts().value_or(Tensor());
  let_flash_be_deterministic(c.deterministic);
  const auto [dq, dk, dv] = at::_flash_attention_backward(
      d.list(dout), d.list(c.q), d.list(c.k), d.list(c.v), d.list(saved.out), saved.logsumexp, starts, starts,
      longest, longest, kNoDropout, /*is_causal=*/true, saved.rng_seed, saved.rng_offset, c.scale,
      keys_before(c));
  return {.dq = dq.reshape(c.q.sizes()), .dk = dk.reshape(c.k.sizes()), .dv = dv.reshape(c.v.sizes())};
}

// --- Memory-efficient attention, which wants a key-value head for each head ---

constexpr int64_t kCausalMask = 1;  // from the top left

// [tokens, kv_heads, head_dim] -> [tokens, heads, head_dim]: a view of groups of one, a copy otherwise.
Tensor expand_heads(const Tensor& x, int64_t heads) {
  const int64_t group = heads / x.size(1);
  if (group == 1) return x;
  return x.unsqueeze(2)
      .expand({x.size(0), x.size(1), group, x.size(2)})
      .reshape({x.size(0), heads, x.size(2)});
}

// The reverse for gradients, summed over each group.
Tensor sum_groups(const Tensor& dx, int64_t kv_heads) {
  if (dx.size(1) == kv_heads) return dx;
  return at::sum(dx.view({dx.size(0), kv_heads, dx.size(1) / kv_heads, dx.size(2)}), {2});
}

void efficient(Saved& saved) {
  const AttentionCall& c = saved.call;
  const Documents d{c.documents};
  const int64_t heads = c.q.size(1), longest = c.documents.longest;
  keep(at::_efficient_attention_forward(d.batch(c.q), d.batch(expand_heads(c.k, heads)),
                                        d.batch(expand_heads(c.v, heads)), /*bias=*/std::nullopt, d.starts(),
                                        d.starts(), longest, longest, kNoDropout, kCausalMask,
                                        /*compute_log_sumexp=*/true, c.scale),
       saved);
}

Gradients efficient_backward(const Tensor& dout, const Saved& saved) {
  const AttentionCall& c = saved.call;
  const Documents d{c.documents};
  const int64_t heads = c.q.size(1), kv_heads = c.k.size(1), longest = c.documents.longest;
  // Blocks of keys that are split up add to dq in any order.
  const std::optional<int64_t> splits = c.deterministic ? std::optional<int64_t>(1) : std::nullopt;
  const auto grads = at::_efficient_attention_backward(
      d.batch(dout), d.batch(c.q), d.batch(expand_heads(c.k, heads)), d.batch(expand_heads(c.v, heads)),
      /*bias=*/std::nullopt, d.batch(saved.out), d.starts(), d.starts(), longest, longest, saved.logsumexp,
      kNoDropout, saved.rng_seed, saved.rng_offset, kCausalMask, /*bias_requires_grad=*/false, c.scale,
      splits);
  const auto of_heads = [&](const Tensor& x) { return x.reshape(c.q.sizes()); };
  return {.dq = of_heads(std::get<0>(grads)),
          .dk = sum_groups(of_heads(std::get<1>(grads)), kv_heads),
          .dv = sum_groups(of_heads(std::get<2>(grads)), kv_heads)};
}

// --- cuDNN ---

// Softcaps are in no library here.
void warn_of_operators() {
  static std::once_flag said;
  std::call_once(said, [] {
    spdlog::warn(
        "attention by LibTorch's plain operators, several times slower: no library at hand takes a softcap "
        "or, in "
        "fp32, sinks or a window");
  });
}

void warn_of_refusal(const std::string& why) {
  static std::once_flag said;
  std::call_once(said, [&] {
    spdlog::warn("attention by FlashAttention-2, slower, since cuDNN has no plan for these shapes: {}", why);
  });
}

}  // namespace

std::optional<int64_t> keys_before(const AttentionCall& c) {
  return c.window == 0 ? std::nullopt : std::optional(c.window - 1);
}

void let_flash_be_deterministic(bool deterministic) {
  at::Context& context = at::globalContext();
  const bool is = context.deterministicAlgorithms() && !context.deterministicAlgorithmsWarnOnly();
  if (deterministic && !is) context.setDeterministicAlgorithms(true, /*warn_only=*/false);
}

// A refusal of cuDNN too is a function of shapes and machine, the same on every rank.
BackEnd choose_on_gpu(const AttentionCall& call) {
  CallShape shape = describe_call(call, kernels::compute_capability(call.q.device()));
  shape.has_cudnn = has_cudnn_attention();
  const BackEnd best = choose_on_gpu(shape);
  if (best == BackEnd::composed_blocks) warn_of_operators();
  if (best != BackEnd::cudnn) return best;
  const std::string refusal = why_not_cudnn(call);
  if (refusal.empty()) return best;
  warn_of_refusal(refusal);
  return BackEnd::flash;
}

void attend_on_gpu(Saved& saved) {
  if (saved.back_end == BackEnd::flash) return flash(saved);
  if (saved.back_end == BackEnd::efficient) return efficient(saved);
  cudnn_attention(saved);
}

Gradients attend_on_gpu_backward(const Tensor& dout, const Saved& saved) {
  if (saved.back_end == BackEnd::flash) return flash_backward(dout, saved);
  if (saved.back_end == BackEnd::efficient) return efficient_backward(dout, saved);
  Gradients grads = empty_gradients(BackEnd::cudnn, saved.call);
  cudnn_attention_backward(dout.contiguous(), saved, grads);
  return grads;
}

}  // namespace pptrain::attention

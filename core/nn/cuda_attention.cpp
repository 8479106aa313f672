#include "core/nn/cuda_attention.h"

#include <ATen/Context.h>
#include <ATen/ops/_efficient_attention_backward.h>
#include <ATen/ops/_efficient_attention_forward.h>
#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>
#include <spdlog/spdlog.h>

#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "core/kernels/cuda/cudnn_attention.h"
#include "core/kernels/device_name.h"

namespace pptrain::nn {
namespace {

using at::Tensor;
using tokens::Segments;
using Call = AttentionStatistics::Call;

constexpr double kDropout = 0;

// How LibTorch's two libraries take documents: equal ones as a batch, unequal ones as one batch entry, or one
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

// --- FlashAttention-2 (Dao, arXiv 2307.08691) ---

Tensor flash(const Tensor& q, const Tensor& k, const Tensor& v, const Documents& d, Call& call) {
  const int64_t longest = d.segments.longest;
  auto result = at::_flash_attention_forward(d.list(q), d.list(k), d.list(v), d.starts(), d.starts(), longest,
                                             longest, kDropout, /*is_causal=*/true,
                                             /*return_debug_mask=*/false);
  call = {
      .logsumexp = std::get<1>(result), .rng_seed = std::get<2>(result), .rng_offset = std::get<3>(result)};
  return std::get<0>(result).contiguous().view(q.sizes());
}

AttentionGradients flash_backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                                  const Documents& d, const Tensor& out, const Call& call) {
  const int64_t longest = d.segments.longest;
  const Tensor starts = d.starts().value_or(Tensor());
  const auto [dq, dk, dv] = at::_flash_attention_backward(
      d.list(dout), d.list(q), d.list(k), d.list(v), d.list(out), call.logsumexp, starts, starts, longest,
      longest, kDropout, /*is_causal=*/true, call.rng_seed, call.rng_offset);
  return {.dq = dq.reshape(q.sizes()), .dk = dk.reshape(k.sizes()), .dv = dv.reshape(v.sizes())};
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

Tensor efficient(const Tensor& q, const Tensor& k, const Tensor& v, const Documents& d, Call& call) {
  const int64_t heads = q.size(1), longest = d.segments.longest;
  auto result = at::_efficient_attention_forward(
      d.batch(q), d.batch(expand_heads(k, heads)), d.batch(expand_heads(v, heads)), /*bias=*/std::nullopt,
      d.starts(), d.starts(), longest, longest, kDropout, kCausalMask, /*compute_log_sumexp=*/true);
  call = {
      .logsumexp = std::get<1>(result), .rng_seed = std::get<2>(result), .rng_offset = std::get<3>(result)};
  return std::get<0>(result).contiguous().view(q.sizes());
}

AttentionGradients efficient_backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                                      const Documents& d, const Tensor& out, const Call& call,
                                      bool deterministic) {
  const int64_t heads = q.size(1), kv_heads = k.size(1), longest = d.segments.longest;
  // Blocks of keys that are split up add to dq in any order.
  const std::optional<int64_t> splits = deterministic ? std::optional<int64_t>(1) : std::nullopt;
  const auto grads = at::_efficient_attention_backward(
      d.batch(dout), d.batch(q), d.batch(expand_heads(k, heads)), d.batch(expand_heads(v, heads)),
      /*bias=*/std::nullopt, d.batch(out), d.starts(), d.starts(), longest, longest, call.logsumexp, kDropout,
      call.rng_seed, call.rng_offset, kCausalMask, /*bias_requires_grad=*/false, /*scale=*/std::nullopt,
      splits);
  const auto of_heads = [&](const Tensor& x) { return x.reshape(q.sizes()); };
  return {.dq = of_heads(std::get<0>(grads)),
          .dk = sum_groups(of_heads(std::get<1>(grads)), kv_heads),
          .dv = sum_groups(of_heads(std::get<2>(grads)), kv_heads)};
}

// --- cuDNN ---

AttentionGradients cudnn_backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                                  const Segments& segments, const Tensor& out, const Call& call,
                                  bool deterministic) {
  AttentionGradients grads = empty_gradients(AttentionBackEnd::cudnn, q, k, segments);
  kernels::cuda::cudnn_attention_backward({q, k, v, segments, deterministic}, dout.contiguous(), out,
                                          call.logsumexp, grads.dq, grads.dk, grads.dv);
  return grads;
}

// --- Choice ---

void warn_of_refusal(const std::string& why) {
  static std::once_flag said;
  std::call_once(said, [&] {
    spdlog::warn("attention by FlashAttention-2, slower, since cuDNN has no plan for these shapes: {}", why);
  });
}

// A refusal of cuDNN too is a function of shapes and machine, the same on every rank.
AttentionBackEnd chosen(const Tensor& q, const Tensor& k, const Tensor& v, const Segments& segments,
                        AttentionOptions options) {
  AttentionCall call =
      describe_call(q, k, segments, options.deterministic, kernels::compute_capability(q.device()));
  call.has_cudnn = kernels::cuda::has_cudnn_attention();
  const AttentionBackEnd best = choose_attention(call);
  if (best != AttentionBackEnd::cudnn) return best;
  const std::string refusal = kernels::cuda::why_not_cudnn({q, k, v, segments, options.deterministic});
  if (refusal.empty()) return best;
  warn_of_refusal(refusal);
  return AttentionBackEnd::flash;
}

}  // namespace

void let_flash_be_deterministic(AttentionOptions options) {
  at::Context& context = at::globalContext();
  const bool is = context.deterministicAlgorithms() && !context.deterministicAlgorithmsWarnOnly();
  if (options.deterministic && !is) context.setDeterministicAlgorithms(true, /*warn_only=*/false);
}

Tensor cuda_attention_by(AttentionBackEnd back_end, const Tensor& q, const Tensor& k, const Tensor& v,
                         const Segments& segments, AttentionStatistics& statistics) {
  statistics.back_end = back_end;
  statistics.calls.assign(1, {});
  Call& call = statistics.calls.front();
  switch (back_end) {
    case AttentionBackEnd::flash:
      return flash(q, k, v, {segments}, call);
    case AttentionBackEnd::efficient:
      return efficient(q, k, v, {segments}, call);
    case AttentionBackEnd::cudnn:
      break;
  }
  Tensor out = at::empty(q.sizes(), q.options());
  call.logsumexp = kernels::cuda::cudnn_attention({q, k, v, segments, statistics.options.deterministic}, out);
  return out;
}

Tensor cuda_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Segments& segments,
                      AttentionStatistics& statistics) {
  return cuda_attention_by(chosen(q, k, v, segments, statistics.options), q, k, v, segments, statistics);
}

AttentionGradients cuda_attention_backward(const Tensor& dout, const Tensor& q, const Tensor& k,
                                           const Tensor& v, const Segments& segments, const Tensor& out,
                                           const AttentionStatistics& statistics) {
  const Call& call = statistics.calls.front();
  const bool deterministic = statistics.options.deterministic;
  switch (statistics.back_end) {
    case AttentionBackEnd::flash:
      let_flash_be_deterministic(statistics.options);
      return flash_backward(dout, q, k, v, {segments}, out, call);
    case AttentionBackEnd::efficient:
      return efficient_backward(dout, q, k, v, {segments}, out, call, deterministic);
    case AttentionBackEnd::cudnn:
      break;
  }
  return cudnn_backward(dout, q, k, v, segments, out, call, deterministic);
}

}  // namespace pptrain::nn

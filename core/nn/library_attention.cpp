#include "core/nn/library_attention.h"

#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>

#include <array>
#include <cstddef>
#include <tuple>
#include <utility>
#include <vector>

namespace pptrain::nn {
namespace {

using at::Tensor;

constexpr bool kCausal = true;
constexpr double kDropout = 0;

// Documents that one call takes: [first, first + documents * length) of the tokens.
struct Batch {
  int64_t first, documents, length;

  // Of x [tokens, heads, head_dim]: [documents, length, heads, head_dim].
  Tensor operator()(const Tensor& x) const {
    return x.narrow(0, first, documents * length).view({documents, length, x.size(1), x.size(2)});
  }
};

std::vector<Batch> batches(const kernels::Segments& segments) {
  if (segments.equal_lengths()) {
    return {{.first = 0, .documents = segments.documents(), .length = segments.longest}};
  }
  std::vector<Batch> result;
  for (int64_t i = 0; i < segments.documents(); ++i) {
    result.push_back({.first = segments.first(i), .documents = 1, .length = segments.length(i)});
  }
  return result;
}

// ATen's attention wants [batch, heads, seq, head_dim], and one key-value head for each head: a view with
// groups of one or with one key-value head, a copy otherwise.
Tensor expand_heads(const Tensor& x, int64_t heads) {
  const int64_t group = heads / x.size(2);
  if (group == 1) {
    return x.transpose(1, 2);
  }
  return x.unsqueeze(3)
      .expand({x.size(0), x.size(1), x.size(2), group, x.size(3)})
      .reshape({x.size(0), x.size(1), heads, x.size(3)})
      .transpose(1, 2);
}

// The reverse for gradients: [batch, heads, seq, head_dim] -> [batch, seq, kv_heads, head_dim], summed over
// each group in float32 and rounded once.
Tensor sum_groups(const Tensor& dx, int64_t kv_heads) {
  const Tensor by_head = dx.transpose(1, 2);
  const int64_t group = dx.size(1) / kv_heads;
  if (group == 1) {
    return by_head;
  }
  return at::sum(by_head.reshape({dx.size(0), dx.size(2), kv_heads, group, dx.size(3)}), {3});
}

Tensor forward_batch(const Tensor& q, const Tensor& k, const Tensor& v, AttentionStatistics::Call& stats) {
  Tensor out;
  if (q.device().is_cpu()) {
    std::tie(out, stats.logsumexp) =
        at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, kDropout, kCausal);
  } else if (q.scalar_type() == at::kBFloat16) {
    auto result =
        at::_scaled_dot_product_flash_attention(q, k, v, kDropout, kCausal, /*return_debug_mask=*/false);
    out = std::get<0>(result);
    stats = {
        .logsumexp = std::get<1>(result), .rng_seed = std::get<6>(result), .rng_offset = std::get<7>(result)};
  } else {
    std::tie(out, stats.logsumexp, stats.rng_seed, stats.rng_offset) =
        at::_scaled_dot_product_efficient_attention(q, k, v, /*attn_bias=*/std::nullopt,
                                                    /*compute_log_sumexp=*/true, kDropout, kCausal);
  }
  return out;
}

std::tuple<Tensor, Tensor, Tensor> backward_batch(const Tensor& dout, const Tensor& q, const Tensor& k,
                                                  const Tensor& v, const Tensor& out,
                                                  const AttentionStatistics::Call& stats) {
  if (q.device().is_cpu()) {
    return at::_scaled_dot_product_flash_attention_for_cpu_backward(dout, q, k, v, out, stats.logsumexp,
                                                                    kDropout, kCausal);
  }
  if (q.scalar_type() == at::kBFloat16) {
    return at::_scaled_dot_product_flash_attention_backward(
        dout, q, k, v, out, stats.logsumexp, /*cum_seq_q=*/Tensor(),
        /*cum_seq_k=*/Tensor(), q.size(2), k.size(2), kDropout, kCausal, stats.rng_seed, stats.rng_offset);
  }
  auto grads = at::_scaled_dot_product_efficient_attention_backward(
      dout, q, k, v, /*attn_bias=*/Tensor(), out, stats.logsumexp, stats.rng_seed, stats.rng_offset, kDropout,
      std::array<bool, 4>{true, true, true, false}, kCausal);
  return {std::get<0>(grads), std::get<1>(grads), std::get<2>(grads)};
}

// FlashAttention-2 on CUDA takes unequal documents with their starts, and key-value heads without copies.
bool takes_starts(const Tensor& q, const kernels::Segments& segments) {
  return q.is_cuda() && q.scalar_type() == at::kBFloat16 && !segments.equal_lengths();
}

Tensor forward_with_starts(const Tensor& q, const Tensor& k, const Tensor& v,
                           const kernels::Segments& segments, AttentionStatistics::Call& stats) {
  auto result =
      at::_flash_attention_forward(q, k, v, segments.starts, segments.starts, segments.longest,
                                   segments.longest, kDropout, kCausal, /*return_debug_mask=*/false);
  stats = {
      .logsumexp = std::get<1>(result), .rng_seed = std::get<2>(result), .rng_offset = std::get<3>(result)};
  return std::get<0>(result).contiguous();
}

AttentionGradients backward_with_starts(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                                        const kernels::Segments& segments, const Tensor& out,
                                        const AttentionStatistics::Call& stats) {
  auto [dq, dk, dv] = at::_flash_attention_backward(dout, q, k, v, out, stats.logsumexp, segments.starts,
                                                    segments.starts, segments.longest, segments.longest,
                                                    kDropout, kCausal, stats.rng_seed, stats.rng_offset);
  return {.dq = std::move(dq), .dk = std::move(dk), .dv = std::move(dv)};
}

// Of one batch, in the shapes of its q, k and v.
AttentionGradients batch_gradients(const Batch& batch, const Tensor& dout, const Tensor& q, const Tensor& k,
                                   const Tensor& v, const Tensor& out,
                                   const AttentionStatistics::Call& stats) {
  const int64_t heads = q.size(1);
  const int64_t kv_heads = k.size(1);
  const auto [dq, dk, dv] =
      backward_batch(batch(dout).transpose(1, 2), batch(q).transpose(1, 2), expand_heads(batch(k), heads),
                     expand_heads(batch(v), heads), batch(out).transpose(1, 2), stats);
  return {.dq = dq.transpose(1, 2), .dk = sum_groups(dk, kv_heads), .dv = sum_groups(dv, kv_heads)};
}

}  // namespace

Tensor library_attention(const Tensor& q, const Tensor& k, const Tensor& v, const kernels::Segments& segments,
                         AttentionStatistics& statistics) {
  statistics.calls.clear();
  if (takes_starts(q, segments)) {
    return forward_with_starts(q, k, v, segments, statistics.calls.emplace_back());
  }
  const int64_t heads = q.size(1);
  const std::vector<Batch> all = batches(segments);
  Tensor out;
  for (const Batch& batch : all) {
    const Tensor result = forward_batch(batch(q).transpose(1, 2), expand_heads(batch(k), heads),
                                        expand_heads(batch(v), heads), statistics.calls.emplace_back())
                              .transpose(1, 2);
    if (all.size() == 1) return result.contiguous().view(q.sizes());
    if (!out.defined()) out = at::empty(q.sizes(), q.options());
    batch(out).copy_(result);
  }
  return out;
}

AttentionGradients library_attention_backward(const Tensor& dout, const Tensor& q, const Tensor& k,
                                              const Tensor& v, const kernels::Segments& segments,
                                              const Tensor& out, const AttentionStatistics& statistics) {
  if (takes_starts(q, segments)) {
    return backward_with_starts(dout, q, k, v, segments, out, statistics.calls.front());
  }
  const std::vector<Batch> all = batches(segments);
  AttentionGradients grads;
  for (size_t i = 0; i < all.size(); ++i) {
    const auto own = batch_gradients(all[i], dout, q, k, v, out, statistics.calls[i]);
    if (all.size() == 1) {
      return {
          .dq = own.dq.reshape(q.sizes()), .dk = own.dk.reshape(k.sizes()), .dv = own.dv.reshape(v.sizes())};
    }
    if (i == 0) {
      grads = {.dq = at::empty(q.sizes(), q.options()),
               .dk = at::empty(k.sizes(), k.options()),
               .dv = at::empty(v.sizes(), v.options())};
    }
    all[i](grads.dq).copy_(own.dq);
    all[i](grads.dk).copy_(own.dk);
    all[i](grads.dv).copy_(own.dv);
  }
  return grads;
}

}  // namespace pptrain::nn

#include "core/nn/library_attention.h"

#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>

#include <cstddef>
#include <tuple>
#include <utility>
#include <vector>

#include "core/nn/cuda_attention.h"

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

// Of one batch, in the shapes of its q, k and v.
AttentionGradients batch_gradients(const Batch& batch, const Tensor& dout, const Tensor& q, const Tensor& k,
                                   const Tensor& v, const Tensor& out,
                                   const AttentionStatistics::Call& stats) {
  const int64_t heads = q.size(1);
  const int64_t kv_heads = k.size(1);
  const auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      batch(dout).transpose(1, 2), batch(q).transpose(1, 2), expand_heads(batch(k), heads),
      expand_heads(batch(v), heads), batch(out).transpose(1, 2), stats.logsumexp, kDropout, kCausal);
  return {.dq = dq.transpose(1, 2), .dk = sum_groups(dk, kv_heads), .dv = sum_groups(dv, kv_heads)};
}

}  // namespace

Tensor library_attention(const Tensor& q, const Tensor& k, const Tensor& v, const kernels::Segments& segments,
                         AttentionStatistics& statistics) {
  if (q.is_cuda()) return cuda_attention(q, k, v, segments, statistics);
  statistics.calls.clear();
  const int64_t heads = q.size(1);
  const std::vector<Batch> all = batches(segments);
  Tensor out;
  for (const Batch& batch : all) {
    auto [by_head, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(
        batch(q).transpose(1, 2), expand_heads(batch(k), heads), expand_heads(batch(v), heads), kDropout,
        kCausal);
    statistics.calls.push_back({.logsumexp = std::move(logsumexp), .rng_seed = {}, .rng_offset = {}});
    const Tensor result = by_head.transpose(1, 2);
    if (all.size() == 1) return result.contiguous().view(q.sizes());
    if (!out.defined()) out = at::empty(q.sizes(), q.options());
    batch(out).copy_(result);
  }
  return out;
}

AttentionGradients library_attention_backward(const Tensor& dout, const Tensor& q, const Tensor& k,
                                              const Tensor& v, const kernels::Segments& segments,
                                              const Tensor& out, const AttentionStatistics& statistics) {
  if (q.is_cuda()) return cuda_attention_backward(dout, q, k, v, segments, out, statistics);
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

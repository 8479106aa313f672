#include "core/nn/causal_attention.h"

#include <ATen/ops/_scaled_dot_product_efficient_attention.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>

#include <array>
#include <tuple>

#include "core/kernels/cpu/attention.h"

namespace pptrain::nn {
namespace {

using at::Tensor;

constexpr bool kCausal = true;
constexpr double kDropout = 0;

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

bool use_own_kernel(const Tensor& q) {
  return q.device().is_cpu() && kernels::cpu::has_attention();
}

Tensor library_attention(const Tensor& q, const Tensor& k, const Tensor& v, AttentionStatistics& stats) {
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

std::tuple<Tensor, Tensor, Tensor> library_backward(const Tensor& dout, const Tensor& q, const Tensor& k,
                                                    const Tensor& v, const Tensor& out,
                                                    const AttentionStatistics& stats) {
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

}  // namespace

Tensor causal_attention(const Tensor& q, const Tensor& k, const Tensor& v, AttentionStatistics& statistics) {
  if (use_own_kernel(q)) {
    Tensor out = at::empty(q.sizes(), q.options());
    statistics.logsumexp = at::empty({q.size(0), q.size(2), q.size(1)}, q.options().dtype(at::kFloat));
    kernels::cpu::causal_attention(q, k, v, out, statistics.logsumexp);
    return out;
  }
  const int64_t heads = q.size(2);
  return library_attention(q.transpose(1, 2), expand_heads(k, heads), expand_heads(v, heads), statistics)
      .transpose(1, 2)
      .contiguous();
}

AttentionGradients causal_attention_backward(const Tensor& dout, const Tensor& q, const Tensor& k,
                                             const Tensor& v, const Tensor& out,
                                             const AttentionStatistics& statistics) {
  if (use_own_kernel(q)) {
    AttentionGradients grads{.dq = at::empty(q.sizes(), q.options()),
                             .dk = at::empty(k.sizes(), k.options()),
                             .dv = at::empty(v.sizes(), v.options())};
    kernels::cpu::causal_attention_backward(dout, q, k, v, out, statistics.logsumexp, grads.dq, grads.dk,
                                            grads.dv);
    return grads;
  }
  const int64_t heads = q.size(2);
  const int64_t kv_heads = k.size(2);
  const auto [dq, dk, dv] = library_backward(dout.transpose(1, 2), q.transpose(1, 2), expand_heads(k, heads),
                                             expand_heads(v, heads), out.transpose(1, 2), statistics);
  return {.dq = dq.transpose(1, 2), .dk = sum_groups(dk, kv_heads), .dv = sum_groups(dv, kv_heads)};
}

}  // namespace pptrain::nn

#include "core/nn/block_attention.h"

#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/full.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "core/kernels/cpu/attention.h"
#include "core/kernels/cpu/attention_blocks.h"
#include "core/kernels/dry_run.h"
#include "core/kernels/kernel_times.h"
#include "core/nn/attention_choice.h"
#include "core/nn/cuda_attention.h"

namespace pptrain::nn {

namespace {

using at::Tensor;
using tokens::AttentionBlock;

// Rows of a block that are taken at a time, and the keys that the last of them sees.
constexpr int64_t kRows = 256;

struct Slab {
  int64_t query, rows, key, keys, first;  // row i sees keys up to first + i, in a causal block
  bool causal;
};

template <class F>
void for_slabs(const AttentionBlock& b, F f) {
  for (int64_t row = 0; row < b.rows; row += kRows) {
    const int64_t rows = std::min(kRows, b.rows - row);
    f(Slab{.query = b.query + row,
           .rows = rows,
           .key = b.key,
           .keys = b.causal ? row + rows : b.keys,
           .first = row,
           .causal = b.causal});
  }
}

// [rows, heads, dim] -> float32 [kv_heads, group * rows, dim]: the heads of a key-value head one below the
// other.
Tensor grouped(const Tensor& x, int64_t kv_heads) {
  return x.to(at::kFloat)
      .reshape({x.size(0), kv_heads, x.size(1) / kv_heads, x.size(2)})
      .permute({1, 2, 0, 3})
      .reshape({kv_heads, x.size(1) / kv_heads * x.size(0), x.size(2)});
}

Tensor ungrouped(const Tensor& x, int64_t rows) {
  return x.view({x.size(0), x.size(1) / rows, rows, x.size(2)})
      .permute({2, 0, 1, 3})
      .reshape({rows, x.size(0) * (x.size(1) / rows), x.size(2)});
}

// Operands of a slab: q [kv_heads, group * rows, dim]; k, v [kv_heads, keys, dim]; scores [kv_heads, group *
// rows, keys], scaled, minus infinity where a row does not see a key.
struct SlabOperands {
  Tensor q, k, v, scores;

  SlabOperands(const Tensor& all_q, const Tensor& all_k, const Tensor& all_v, const Slab& s)
      : q(grouped(all_q.narrow(0, s.query, s.rows), all_k.size(1))),
        k(grouped(all_k.narrow(0, s.key, s.keys), all_k.size(1))),
        v(grouped(all_v.narrow(0, s.key, s.keys), all_k.size(1))),
        scores(at::matmul(q, k.transpose(1, 2)).mul_(scale())) {
    if (!s.causal) return;
    const Tensor hidden = at::ones({s.rows, s.keys}, q.options().dtype(at::kBool)).triu(s.first + 1);
    scores.view({scores.size(0), -1, s.rows, s.keys})
        .masked_fill_(hidden, -std::numeric_limits<float>::infinity());
  }

  double scale() const { return 1 / std::sqrt(static_cast<double>(q.size(2))); }
};

}  // namespace

void merge_attention(PartialAttention& seen, int64_t first, const Tensor& out, const Tensor& logsumexp) {
  Tensor old_out = seen.out.narrow(0, first, out.size(0));
  Tensor old = seen.logsumexp.narrow(1, first, out.size(0));
  const Tensor both = at::logaddexp(old, logsumexp);
  const auto share = [&](const Tensor& of) { return at::exp(of.sub(both)).transpose(0, 1).unsqueeze(2); };
  old_out.mul_(share(old)).add_(share(logsumexp).mul(out));
  old.copy_(both);
}

void add_plain_attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionBlock& block,
                         PartialAttention& seen) {
  for_slabs(block, [&](const Slab& slab) {
    const SlabOperands x(q, k, v, slab);
    const Tensor logsumexp = at::logsumexp(x.scores, {2}, /*keepdim=*/true);
    const Tensor out = at::matmul(at::exp(x.scores.sub(logsumexp)), x.v);
    merge_attention(seen, slab.query, ungrouped(out, slab.rows), logsumexp.view({q.size(1), slab.rows}));
  });
}

void add_plain_attention_backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                                  const Tensor& out, const Tensor& logsumexp, const AttentionBlock& block,
                                  AttentionGradients& grads) {
  for_slabs(block, [&](const Slab& slab) {
    const SlabOperands x(q, k, v, slab);
    const int64_t kv_heads = k.size(1);
    const Tensor dy = grouped(dout.narrow(0, slab.query, slab.rows), kv_heads);
    const Tensor y = grouped(out.narrow(0, slab.query, slab.rows), kv_heads);
    const Tensor statistics = logsumexp.narrow(1, slab.query, slab.rows).reshape({kv_heads, -1, 1});
    const Tensor p = at::exp(x.scores.sub(statistics));
    const Tensor mean = dy.mul(y).sum(2, /*keepdim=*/true);
    const Tensor dscores = at::matmul(dy, x.v.transpose(1, 2)).sub_(mean).mul_(p).mul_(x.scale());
    const auto add = [&](Tensor& to, int64_t first, const Tensor& by_head, int64_t rows) {
      to.narrow(0, first, rows).add_(ungrouped(by_head.contiguous(), rows));
    };
    add(grads.dq, slab.query, at::matmul(dscores, x.k), slab.rows);
    add(grads.dk, slab.key, at::matmul(dscores.transpose(1, 2), x.q), slab.keys);
    add(grads.dv, slab.key, at::matmul(p.transpose(1, 2), dy), slab.keys);
  });
}

namespace {

using at::Tensor;
using tokens::AttentionBlock;
using Blocks = std::span<const AttentionBlock>;

constexpr double kDropout = 0;

bool use_flash(const Tensor& q) {
  return q.is_cuda() && q.scalar_type() == at::kBFloat16;
}

// `products` of 2 operations for each pair of a query and a key that it sees, head and element.
kernels::Cost cost_of(double products, const Tensor& q, Blocks blocks, kernels::Cost moved) {
  double pairs = 0;
  for (const AttentionBlock& block : blocks) pairs += block.pairs();
  moved.attention_flops = products * 2 * pairs * static_cast<double>(q.size(1) * q.size(2));
  return moved;
}

// Of the GPU that a dry run stands for: its libraries' memory for the block that takes most.
enum class Pass { forward, backward };
void record_scratch(Pass pass, const Tensor& q, const Tensor& k, Blocks blocks, AttentionOptions options) {
  const kernels::GpuKind gpu = kernels::dry_gpu();
  if (!gpu.is_gpu() || q.scalar_type() != at::kBFloat16) return;  // plain operators' is not known
  const AttentionCall call{.heads = q.size(1),
                           .kv_heads = k.size(1),
                           .head_dim = q.size(2),
                           .deterministic = options.deterministic};
  for (const AttentionBlock& b : blocks) {
    kernels::record_scratch(pass == Pass::forward
                                ? block_forward_scratch(call, b.rows)
                                : block_backward_scratch(call, b.rows, b.keys, gpu.multiprocessors));
  }
}

// --- FlashAttention-2: a call for each block, as a batch of one ---

Tensor rows_of(const Tensor& x, int64_t first, int64_t count) {
  return x.narrow(0, first, count).unsqueeze(0);
}

void flash_block(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionBlock& b,
                 PartialAttention& seen) {
  const auto result = at::_flash_attention_forward(
      rows_of(q, b.query, b.rows), rows_of(k, b.key, b.keys), rows_of(v, b.key, b.keys),
      /*cum_seq_q=*/std::nullopt, /*cum_seq_k=*/std::nullopt, b.rows, b.keys, kDropout, b.causal,
      /*return_debug_mask=*/false);
  merge_attention(seen, b.query, std::get<0>(result).squeeze(0), std::get<1>(result).squeeze(0));
}

void flash_block_backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                          const Tensor& out, const Tensor& logsumexp, const AttentionBlock& b,
                          AttentionGradients& grads) {
  const auto kind = at::TensorOptions().dtype(at::kUInt64).device(q.device());
  const Tensor no_seed = at::zeros({2}, kind), unused = at::empty({0}, kind);  // there is no dropout
  const auto [dq, dk, dv] = at::_flash_attention_backward(
      rows_of(dout, b.query, b.rows).contiguous(), rows_of(q, b.query, b.rows), rows_of(k, b.key, b.keys),
      rows_of(v, b.key, b.keys), rows_of(out, b.query, b.rows),
      logsumexp.narrow(1, b.query, b.rows).contiguous().unsqueeze(0), /*cum_seq_q=*/Tensor(),
      /*cum_seq_k=*/Tensor(), b.rows, b.keys, kDropout, b.causal, no_seed, unused);
  grads.dq.narrow(0, b.query, b.rows).add_(dq.squeeze(0));
  grads.dk.narrow(0, b.key, b.keys).add_(dk.squeeze(0));
  grads.dv.narrow(0, b.key, b.keys).add_(dv.squeeze(0));
}

}  // namespace

PartialAttention no_attention(const Tensor& q) {
  const auto f32 = q.options().dtype(at::kFloat);
  return {.out = at::zeros(q.sizes(), f32),
          .logsumexp = at::full({q.size(1), q.size(0)}, -std::numeric_limits<float>::infinity(), f32)};
}

void add_attention(const Tensor& q, const Tensor& k, const Tensor& v, Blocks blocks, PartialAttention& seen) {
  if (blocks.empty()) return;
  const kernels::Cost cost =
      cost_of(2, q, blocks, kernels::moving(q, k, v, seen.out, seen.out, seen.logsumexp, seen.logsumexp));
  if (kernels::is_dry(q)) {
    kernels::record(cost);
    record_scratch(Pass::forward, q, k, blocks, {});
  } else if (q.is_cpu()) {
    kernels::KernelClock::time({"add_attention", {}}, cost, [&] {
      kernels::cpu::add_attention_blocks(q, k, v, blocks, seen.out, seen.logsumexp);
    });
  } else {
    for (const AttentionBlock& block : blocks) {
      use_flash(q) ? flash_block(q, k, v, block, seen) : add_plain_attention(q, k, v, block, seen);
    }
  }
}

void add_attention_backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                            const Tensor& out, const Tensor& logsumexp, Blocks blocks,
                            AttentionGradients& grads, AttentionOptions options) {
  if (blocks.empty()) return;
  const kernels::Cost cost = cost_of(5, q, blocks,
                                     kernels::moving(dout, q, k, v, out, logsumexp, grads.dq, grads.dq,
                                                     grads.dk, grads.dk, grads.dv, grads.dv));
  if (kernels::is_dry(q)) {
    kernels::record(cost);
    record_scratch(Pass::backward, q, k, blocks, options);
  } else if (q.is_cpu()) {
    kernels::KernelClock::time({"add_attention_backward", {}}, cost, [&] {
      kernels::cpu::add_attention_blocks_backward(dout, q, k, v, out, logsumexp, blocks, grads.dq, grads.dk,
                                                  grads.dv);
    });
  } else {
    if (use_flash(q)) let_flash_be_deterministic(options);
    for (const AttentionBlock& block : blocks) {
      use_flash(q) ? flash_block_backward(dout, q, k, v, out, logsumexp, block, grads)
                   : add_plain_attention_backward(dout, q, k, v, out, logsumexp, block, grads);
    }
  }
}

}  // namespace pptrain::nn

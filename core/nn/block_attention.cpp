#include "core/nn/block_attention.h"

#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <limits>

#include "core/kernels/cpu/attention.h"
#include "core/kernels/cpu/attention_blocks.h"
#include "core/kernels/dry_run.h"
#include "core/kernels/kernel_times.h"
#include "core/nn/attention_memory.h"
#include "core/nn/cuda_attention.h"
#include "core/nn/plain_attention.h"

namespace pptrain::nn {
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

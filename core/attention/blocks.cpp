#include "core/attention/blocks.h"

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

#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "core/attention/cpu.h"
#include "core/attention/gpu.h"
#include "core/kernels/dry_run.h"
#include "core/kernels/kernel_times.h"

namespace pptrain::attention {
namespace {

using at::Tensor;
using tokens::AttentionBlock;
using Blocks = std::span<const AttentionBlock>;

// Merges attention of the queries [first, first + rows) to keys that they had not seen. out: [rows, heads,
// head_dim]; logsumexp: float32 [heads, rows].
void merge_attention(PartialAttention& seen, int64_t first, const Tensor& out, const Tensor& logsumexp) {
  Tensor old_out = seen.out.narrow(0, first, out.size(0));
  Tensor old = seen.logsumexp.narrow(1, first, out.size(0));
  const Tensor both = at::logaddexp(old, logsumexp);
  const auto share = [&](const Tensor& of) { return at::exp(of.sub(both)).transpose(0, 1).unsqueeze(2); };
  old_out.mul_(share(old)).add_(share(logsumexp).mul(out));
  old.copy_(both);
}

// --- LibTorch's plain operators, in float32 ---

constexpr int64_t kComposedRows = 256;  // of a block that are taken at a time, with all keys that they see

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

// bool [rows, keys]: whether a row does not see a key.
Tensor hidden_keys(const Tile& s, int64_t window, const Tensor& like) {
  const Tensor all = at::ones({s.rows, s.keys}, like.options().dtype(at::kBool));
  const Tensor later = all.triu(s.first + 1);
  return window == 0 ? later : later.logical_or_(all.tril(s.first - window));
}

// Operands of a tile: q [kv_heads, group * rows, dim]; k, v [kv_heads, keys, dim]; scores [kv_heads, group *
// rows, keys], scaled and capped, minus infinity if a row does not see a key. Also `slope`, shaped like
// scores: the derivative of the cap if there is one.
struct TileOperands {
  Tensor q, k, v, scores, slope;

  TileOperands(const AttentionCall& c, const Tile& s)
      : q(grouped(c.q.narrow(0, s.query, s.rows), c.k.size(1))),
        k(grouped(c.k.narrow(0, s.key, s.keys), c.k.size(1))),
        v(grouped(c.v.narrow(0, s.key, s.keys), c.k.size(1))),
        scores(at::matmul(q, k.transpose(1, 2)).mul_(scale_of(c))) {
    if (c.softcap != 0) {
      scores.div_(c.softcap).tanh_();
      slope = scores.square().neg_().add_(1);
      scores.mul_(c.softcap);
    }
    if (s.first >= s.keys && c.window == 0) return;  // all rows see all
    scores.view({scores.size(0), -1, s.rows, s.keys})
        .masked_fill_(hidden_keys(s, c.window, scores), -std::numeric_limits<float>::infinity());
  }
};

void add_composed(const AttentionCall& c, const AttentionBlock& block, PartialAttention& seen) {
  for_tiles(block, c.window, kComposedRows, block.keys, [&](const Tile& tile) {
    const TileOperands x(c, tile);
    // Finite even if a window leaves nothing of the tile to a row.
    const Tensor logsumexp =
        at::logsumexp(x.scores, {2}, /*keepdim=*/true).clamp_min_(std::numeric_limits<float>::lowest());
    const Tensor out = at::matmul(at::exp(x.scores.sub(logsumexp)), x.v);
    merge_attention(seen, tile.query, ungrouped(out, tile.rows), logsumexp.view({c.q.size(1), tile.rows}));
  });
}

void add_composed_backward(const Tensor& dout, const Saved& saved, const AttentionBlock& block,
                           Gradients& grads) {
  for_tiles(block, saved.call.window, kComposedRows, block.keys, [&](const Tile& tile) {
    const TileOperands x(saved.call, tile);
    const int64_t kv_heads = x.k.size(0);
    const Tensor dy = grouped(dout.narrow(0, tile.query, tile.rows), kv_heads);
    const Tensor y = grouped(saved.out.narrow(0, tile.query, tile.rows), kv_heads);
    const Tensor statistics = saved.logsumexp.narrow(1, tile.query, tile.rows).reshape({kv_heads, -1, 1});
    const Tensor p = at::exp(x.scores.sub(statistics));
    const Tensor mean = dy.mul(y).sum(2, /*keepdim=*/true);
    const Tensor dscores = at::matmul(dy, x.v.transpose(1, 2)).sub_(mean).mul_(p).mul_(scale_of(saved.call));
    if (x.slope.defined()) dscores.mul_(x.slope);
    const auto add = [&](Tensor& to, int64_t first, const Tensor& by_head, int64_t rows) {
      to.narrow(0, first, rows).add_(ungrouped(by_head.contiguous(), rows));
    };
    add(grads.dq, tile.query, at::matmul(dscores, x.k), tile.rows);
    add(grads.dk, tile.key, at::matmul(dscores.transpose(1, 2), x.q), tile.keys);
    add(grads.dv, tile.key, at::matmul(p.transpose(1, 2), dy), tile.keys);
  });
}

// --- FlashAttention-2: a call for each block, as a batch of one ---

Tensor rows_of(const Tensor& x, int64_t first, int64_t count) {
  return x.narrow(0, first, count).unsqueeze(0);
}

// FlashAttention-2 counts windows from the last key, which is the last query's own in causal blocks alone.
// Other blocks of a window go through plain operators.
bool is_by_flash(BackEnd back_end, const AttentionCall& c, const AttentionBlock& b) {
  return back_end == BackEnd::flash_blocks && (c.window == 0 || b.causal);
}

void add_flash(const AttentionCall& c, const AttentionBlock& b, PartialAttention& seen) {
  const auto result = at::_flash_attention_forward(
      rows_of(c.q, b.query, b.rows), rows_of(c.k, b.key, b.keys), rows_of(c.v, b.key, b.keys),
      /*cum_seq_q=*/std::nullopt, /*cum_seq_k=*/std::nullopt, b.rows, b.keys, /*dropout_p=*/0, b.causal,
      /*return_debug_mask=*/false, c.scale, keys_before(c));
  merge_attention(seen, b.query, std::get<0>(result).squeeze(0), std::get<1>(result).squeeze(0));
}

void add_flash_backward(const Tensor& dout, const Saved& saved, const AttentionBlock& b, Gradients& grads) {
  const AttentionCall& c = saved.call;
  const auto kind = at::TensorOptions().dtype(at::kUInt64).device(c.q.device());
  const Tensor no_seed = at::zeros({2}, kind), unused = at::empty({0}, kind);  // there is no dropout
  const auto [dq, dk, dv] = at::_flash_attention_backward(
      rows_of(dout, b.query, b.rows).contiguous(), rows_of(c.q, b.query, b.rows), rows_of(c.k, b.key, b.keys),
      rows_of(c.v, b.key, b.keys), rows_of(saved.out, b.query, b.rows),
      saved.logsumexp.narrow(1, b.query, b.rows).contiguous().unsqueeze(0), /*cum_seq_q=*/Tensor(),
      /*cum_seq_k=*/Tensor(), b.rows, b.keys, /*dropout_p=*/0, b.causal, no_seed, unused, c.scale,
      keys_before(c));
  grads.dq.narrow(0, b.query, b.rows).add_(dq.squeeze(0));
  grads.dk.narrow(0, b.key, b.keys).add_(dk.squeeze(0));
  grads.dv.narrow(0, b.key, b.keys).add_(dv.squeeze(0));
}

// --- Choice, cost and memory ---

// A dry run stands for a GPU, or for the CPU. The call may belong to several ranks; then the blocks are each
// rank's own.
BackEnd choose_for_blocks(const AttentionCall& call) {
  const Tensor& q = call.q;
  if (q.is_cpu() || (kernels::is_dry(q) && !kernels::dry_gpu().is_gpu())) return BackEnd::cpu_blocks;
  Takes asked = what_asks(call);
  asked.split = false;
  const bool flash = q.scalar_type() == at::kBFloat16 && takes(BackEnd::flash_blocks, asked);
  return flash ? BackEnd::flash_blocks : BackEnd::composed_blocks;
}

// For the GPU that a dry run stands for: FlashAttention-2's memory for each block. The plain operators'
// memory is not known.
template <class Scratch>
void record_scratch(BackEnd back_end, Blocks blocks, Scratch scratch) {
  if (back_end != BackEnd::flash_blocks) return;
  for (const AttentionBlock& block : blocks) kernels::record_scratch(scratch(block));
}

// `x` in a type; a kernel of its own if that is another type.
Tensor rounded(const Tensor& x, at::ScalarType type) {
  Tensor y = x.to(type);
  if (type != x.scalar_type()) kernels::record(kernels::moving(x, y));
  return y;
}

}  // namespace

std::vector<AttentionBlock> document_blocks(const tokens::Segments& documents) {
  std::vector<AttentionBlock> blocks;
  for (int64_t i = 0; i < documents.documents(); ++i) {
    const int64_t first = documents.first(i), length = documents.length(i);
    blocks.push_back(
        {.document = i, .query = first, .rows = length, .key = first, .keys = length, .causal = true});
  }
  return blocks;
}

kernels::Cost cost_of(double products, const AttentionCall& c, Blocks blocks, kernels::Cost moved) {
  double pairs = 0;
  for (const AttentionBlock& block : blocks) pairs += block.pairs(c.window);
  moved.attention_flops = products * 2 * pairs * static_cast<double>(c.q.size(1) * c.q.size(2));
  return moved;
}

PartialAttention no_attention(const AttentionCall& call) {
  const Tensor& q = call.q;
  const auto f32 = q.options().dtype(at::kFloat);
  const Tensor logsumexp = at::full({q.size(1), q.size(0)}, -std::numeric_limits<float>::infinity(), f32);
  if (call.sinks.defined()) logsumexp.copy_(call.sinks.unsqueeze(1).expand_as(logsumexp));
  return {.out = at::zeros(q.sizes(), f32), .logsumexp = logsumexp, .back_end = choose_for_blocks(call)};
}

void add_attention(const AttentionCall& c, Blocks blocks, PartialAttention& seen) {
  require_taken(seen.back_end, c);
  if (blocks.empty()) return;
  const kernels::Cost cost = cost_of(
      2, c, blocks, kernels::moving(c.q, c.k, c.v, seen.out, seen.out, seen.logsumexp, seen.logsumexp));
  if (kernels::is_dry(c.q)) {
    kernels::record(cost);
    record_scratch(seen.back_end, blocks, [shape = describe_call(c, 0)](const AttentionBlock& b) {
      return block_forward_scratch(shape, b.rows);
    });
  } else if (seen.back_end == BackEnd::cpu_blocks) {
    kernels::KernelClock::time({"add_attention", {}}, cost, [&] { add_blocks_on_cpu(c, blocks, seen); });
  } else {
    for (const AttentionBlock& block : blocks)
      (is_by_flash(seen.back_end, c, block) ? add_flash : add_composed)(c, block, seen);
  }
}

Tensor finish_attention(AttentionCall call, PartialAttention seen, Saved& saved) {
  const at::ScalarType type = call.q.scalar_type();
  saved = {.call = std::move(call),
           .out = rounded(seen.out, type),
           .logsumexp = std::move(seen.logsumexp),
           .back_end = seen.back_end};
  return saved.out;
}

void add_attention_backward(const Tensor& dout, const Saved& saved, Blocks blocks, Gradients& grads) {
  if (blocks.empty()) return;
  const AttentionCall& c = saved.call;
  const kernels::Cost cost =
      cost_of(5, c, blocks,
              kernels::moving(dout, c.q, c.k, c.v, saved.out, saved.logsumexp, grads.dq, grads.dq, grads.dk,
                              grads.dk, grads.dv, grads.dv));
  if (kernels::is_dry(c.q)) {
    kernels::record(cost);
    record_scratch(saved.back_end, blocks, [shape = describe_call(c, 0)](const AttentionBlock& b) {
      return block_backward_scratch(shape, b.rows, b.keys, kernels::dry_gpu().multiprocessors);
    });
  } else if (saved.back_end == BackEnd::cpu_blocks) {
    kernels::KernelClock::time({"add_attention_backward", {}}, cost,
                               [&] { add_blocks_on_cpu_backward(dout, saved, blocks, grads); });
  } else {
    if (saved.back_end == BackEnd::flash_blocks) let_flash_be_deterministic(c.deterministic);
    for (const AttentionBlock& block : blocks) {
      const auto add = is_by_flash(saved.back_end, c, block) ? add_flash_backward : add_composed_backward;
      add(dout, saved, block, grads);
    }
  }
}

Gradients finish_gradients(const Tensor& dq, const Tensor& dkv, const Tensor& dout, const Saved& saved) {
  const Tensor of_keys = rounded(dkv, dout.scalar_type());
  return {.dq = rounded(dq, dout.scalar_type()),
          .dk = of_keys.select(0, 0),
          .dv = of_keys.select(0, 1),
          .dsinks = sink_gradient(dout, saved)};
}

void attend_in_blocks(Saved& saved) {
  PartialAttention seen = no_attention(saved.call);
  seen.back_end = saved.back_end;
  add_attention(saved.call, document_blocks(saved.call.documents), seen);
  saved.out = seen.out.to(saved.call.q.scalar_type());
  saved.logsumexp = std::move(seen.logsumexp);
}

Gradients attend_in_blocks_backward(const Tensor& dout, const Saved& saved) {
  const AttentionCall& c = saved.call;
  const auto zeros = [](const Tensor& x) { return at::zeros(x.sizes(), x.options().dtype(at::kFloat)); };
  Gradients grads{.dq = zeros(c.q), .dk = zeros(c.k), .dv = zeros(c.v)};
  add_attention_backward(dout, saved, document_blocks(c.documents), grads);
  for (Tensor* grad : {&grads.dq, &grads.dk, &grads.dv}) *grad = grad->to(c.q.scalar_type());
  return grads;
}

}  // namespace pptrain::attention

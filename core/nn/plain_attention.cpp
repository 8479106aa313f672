#include "core/nn/plain_attention.h"

#include <ATen/ops/exp.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

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

}  // namespace pptrain::nn

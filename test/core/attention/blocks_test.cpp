// Attention with keys in blocks, against autograd in float64 over the whole list.
#include "core/attention/blocks.h"

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <vector>

#include "core/data/tokens/context_split.h"
#include "core/kernels/dry_run.h"
#include "test/core/attention/attention_oracle.h"
#include "test/core/kernels/compare.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

using namespace pptrain;
using namespace pptrain::test;
using at::Tensor;
using attention::AttentionCall;
using attention::BackEnd;
using tokens::AttentionBlock;

namespace {

Tensor own_rows(const Tensor& x, const tokens::ContextSplit& split, int rank) {
  std::vector<Tensor> parts;
  for (const auto& range : split.ranges[static_cast<size_t>(rank)]) {
    parts.push_back(x.narrow(0, range.begin, range.length()));
  }
  return test::cat(parts);
}

void put_rows(const Tensor& from, const tokens::ContextSplit& split, int rank, const Tensor& to) {
  int64_t local = 0;
  for (const auto& range : split.ranges[static_cast<size_t>(rank)]) {
    to.narrow(0, range.begin, range.length()).copy_(from.narrow(0, local, range.length()));
    local += range.length();
  }
}

struct BlockResult {
  Tensor out, logsumexp, dq, dk, dv;
};

// The results of all ranks; each takes the keys of one rank after the other.
BlockResult in_parts(BackEnd back_end, const tokens::ContextSplit& split, const tokens::Segments& segments,
                     const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& dout) {
  const auto f32 = q.options().dtype(at::kFloat);
  BlockResult all{.out = at::empty(q.sizes(), q.options()),
                  .logsumexp = at::empty({q.size(0), q.size(1)}, f32),
                  .dq = at::zeros(q.sizes(), f32),
                  .dk = at::zeros(k.sizes(), f32),
                  .dv = at::zeros(k.sizes(), f32)};
  for (int r = 0; r < split.parts(); ++r) {
    const auto blocks = [&](int keys) {
      return tokens::attention_blocks(tokens::document_pieces(split, r, segments),
                                      tokens::document_pieces(split, keys, segments));
    };
    const Tensor own_q = own_rows(q, split, r), own_dout = own_rows(dout, split, r);
    const auto call = [&](int keys) {
      return AttentionCall{.q = own_q, .k = own_rows(k, split, keys), .v = own_rows(v, split, keys)};
    };
    attention::PartialAttention seen = attention::no_attention(call(r));
    seen.back_end = back_end;
    for (int s = 0; s < split.parts(); ++s) attention::add_attention(call(s), blocks(s), seen);
    const Tensor out = seen.out.to(q.scalar_type());
    put_rows(out, split, r, all.out);
    put_rows(seen.logsumexp.t().contiguous(), split, r, all.logsumexp);
    attention::Gradients grads{.dq = at::zeros(own_q.sizes(), f32), .dk = {}, .dv = {}};
    for (int s = 0; s < split.parts(); ++s) {
      grads.dk = own_rows(all.dk, split, s);
      grads.dv = own_rows(all.dv, split, s);
      attention::add_attention_backward(
          own_dout, {.call = call(s), .out = out, .logsumexp = seen.logsumexp, .back_end = back_end},
          blocks(s), grads);
      put_rows(grads.dk, split, s, all.dk);
      put_rows(grads.dv, split, s, all.dv);
    }
    put_rows(grads.dq, split, r, all.dq);
  }
  return all;
}

}  // namespace

TEST_CASE("parts of attention add up to the whole, with its gradients", "[attention]") {
  at::set_num_threads(1);
  const BackEnd back_end = GENERATE(BackEnd::cpu_blocks, BackEnd::composed_blocks);
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  struct Sizes {
    int64_t tokens, heads, kv_heads, head_dim;
    std::vector<int32_t> starts;
    int ranks;
  };
  // Chunks longer than a tile of keys; documents that cross ranks and some that do not; groups of heads.
  const Sizes sizes = GENERATE(Sizes{2400, 2, 1, 8, {0, 2400}, 1}, Sizes{2400, 1, 1, 16, {0, 2400}, 2},
                               Sizes{96, 6, 2, 10, {0, 1, 2, 40, 41, 77, 96}, 3});
  INFO(sizes.tokens << " tokens, " << sizes.ranks << " ranks, type " << c10::toString(type));
  at::manual_seed(test::seed(11));
  const auto segments = tokens::make_segments(sizes.starts, at::kCPU);
  const auto split =
      tokens::split_rows(sizes.ranks == 1 ? tokens::ContextOrder::contiguous : tokens::ContextOrder::zigzag,
                         1, sizes.tokens, sizes.ranks, 0);
  const Tensor q = random({sizes.tokens, sizes.heads, sizes.head_dim}, type);
  const Tensor k = random({sizes.tokens, sizes.kv_heads, sizes.head_dim}, type);
  const Tensor v = random({sizes.tokens, sizes.kv_heads, sizes.head_dim}, type);
  const Tensor dout = random(q.sizes(), type);
  const Tensor lq = leaf(q), lk = leaf(k), lv = leaf(v);
  const Tensor expected = masked_attention(lq, lk, lv, segments);
  expected.backward(dout.to(at::kDouble));
  const c10::InferenceMode inference;
  const BlockResult actual = in_parts(back_end, split, segments, q, k, v, dout);
  CHECK(relative_error(actual.out, expected) < tolerance(type));
  CHECK(relative_error(actual.dq, lq.grad()) < tolerance(type));
  CHECK(relative_error(actual.dk, lk.grad()) < tolerance(type));
  CHECK(relative_error(actual.dv, lv.grad()) < tolerance(type));
  CHECK(same_bits(actual.dq, in_parts(back_end, split, segments, q, k, v, dout).dq));
}

TEST_CASE("whole documents give the local kernel's values, on any number of threads", "[attention]") {
  const c10::InferenceMode inference;
  at::manual_seed(test::seed(2));
  const auto segments = tokens::make_segments({0, 300, 301, 640}, at::kCPU);
  const auto split = tokens::split_rows(tokens::ContextOrder::contiguous, 1, 640, 1, 0);
  // Strided views, as of a fused qkv.
  const Tensor qkv = random({640, 8, 16}, at::kFloat);
  const Tensor q = qkv.narrow(1, 0, 4), k = qkv.narrow(1, 4, 2), v = qkv.narrow(1, 6, 2);
  const auto pieces = tokens::document_pieces(split, 0, segments);
  const auto blocks = tokens::attention_blocks(pieces, pieces);
  const AttentionCall call{.q = q, .k = k, .v = v, .documents = segments};
  attention::Saved saved;
  const Tensor expected = attention::attend(call, saved);
  std::vector<attention::PartialAttention> results;
  for (const int threads : {1, 3}) {
    at::set_num_threads(threads);
    attention::add_attention(call, blocks, results.emplace_back(attention::no_attention(call)));
  }
  at::set_num_threads(1);
  CHECK(relative_error(results[0].out, expected) < 1e-6);
  CHECK(relative_error(results[0].logsumexp, saved.logsumexp) < 1e-6);
  CHECK(same_bits(results[0].out, results[1].out));
  CHECK(same_bits(results[0].logsumexp, results[1].logsumexp));
}

TEST_CASE("on the meta device the cost of the blocks given is recorded", "[attention]") {
  const c10::InferenceMode inference;
  const auto kind = at::TensorOptions().dtype(at::kBFloat16).device(at::kMeta);
  const Tensor q = at::empty({32, 4, 8}, kind), k = at::empty({20, 2, 8}, kind);
  const std::vector<AttentionBlock> blocks = {
      {.document = 0, .query = 0, .rows = 10, .key = 0, .keys = 10, .causal = true},
      {.document = 1, .query = 10, .rows = 6, .key = 10, .keys = 5}};
  const double products = 2 * (50.0 + 30.0) * 4 * 8;
  const kernels::DryRun run;
  const AttentionCall call{.q = q, .k = k, .v = k};
  attention::PartialAttention seen = attention::no_attention(call);
  attention::add_attention(call, {}, seen);
  CHECK(run.cost() == kernels::Cost{});
  attention::add_attention(call, blocks, seen);
  CHECK(run.cost().attention_flops == 2 * products);
  attention::Gradients grads{.dq = at::empty(q.sizes(), kind.dtype(at::kFloat)),
                             .dk = at::empty(k.sizes(), kind.dtype(at::kFloat)),
                             .dv = at::empty(k.sizes(), kind.dtype(at::kFloat))};
  attention::add_attention_backward(q, {.call = call, .out = q, .logsumexp = seen.logsumexp}, blocks, grads);
  CHECK(run.cost().attention_flops == 7 * products);
}

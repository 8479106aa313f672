// Each back end of attention on a GPU against float64 on the CPU, and against itself.
#include <ATen/Context.h>
#include <c10/core/InferenceMode.h>

#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "core/attention/attention.h"
#include "core/attention/blocks.h"
#include "core/attention/cudnn/cudnn_attention.h"
#include "core/attention/cudnn/cudnn_shape.h"
#include "core/attention/gpu.h"
#include "core/data/tokens/segments.h"
#include "core/kernels/device_name.h"
#include "test/gpu/kernel_support.h"
#include "test/support/catch.h"
#include "test/support/not_run.h"
#include "test/support/ops.h"

using namespace pptrain;
using namespace pptrain::test;
using attention::AttentionCall;
using attention::BackEnd;
using attention::Gradients;
using attention::Saved;

namespace {

struct Shape {
  std::vector<int32_t> starts;
  int64_t heads, kv_heads, head_dim;
};

struct Operands {
  Tensor fused, dout;
  Tensor q, k, v;  // views of `fused`
};

struct Result {
  Tensor out, dq, dk, dv;

  std::vector<Tensor> all() const { return {out, dq, dk, dv}; }
};

Operands operands(const Shape& s, at::ScalarType type, const Backend& on) {
  const int64_t tokens = s.starts.back();
  Operands x;
  x.fused = on.random({tokens, s.heads + 2 * s.kv_heads, s.head_dim}, type, 1);
  x.dout = on.random({tokens, s.heads, s.head_dim}, type, 2);
  x.q = x.fused.narrow(1, 0, s.heads);
  x.k = x.fused.narrow(1, s.heads, s.kv_heads);
  x.v = x.fused.narrow(1, s.heads + s.kv_heads, s.kv_heads);
  return x;
}

// [length, heads, dim] -> [heads, length, dim], with a copy of each key-value head for each head of its
// group.
Tensor by_head(const Tensor& x, int64_t heads) {
  return x.repeat_interleave(heads / x.size(1), 1).transpose(0, 1);
}

// And back for gradients: summed over groups.
Tensor by_token(const Tensor& x, int64_t kv_heads) {
  const Tensor t = x.transpose(0, 1);
  return t.reshape({t.size(0), kv_heads, t.size(1) / kv_heads, t.size(2)}).sum(2);
}

// One document in float64 by the formulas: P = softmax(S), dS = P (dP - rowsum(dout out)).
Result plain_document(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& dout) {
  const int64_t heads = q.size(1), kv_heads = k.size(1), rows = q.size(0);
  const double scale = 1 / std::sqrt(static_cast<double>(q.size(2)));
  const Tensor hq = by_head(q, heads), hk = by_head(k, heads), hv = by_head(v, heads),
               dy = by_head(dout, heads);
  const Tensor hidden = at::ones({rows, rows}, at::kBool).triu(1);
  const Tensor p = at::matmul(hq, hk.transpose(1, 2))
                       .mul(scale)
                       .masked_fill(hidden, -std::numeric_limits<double>::infinity())
                       .softmax(-1);
  const Tensor y = at::matmul(p, hv);
  const Tensor ds = at::matmul(dy, hv.transpose(1, 2)).sub(dy.mul(y).sum(-1, true)).mul(p).mul(scale);
  return {.out = by_token(y, heads),
          .dq = by_token(at::matmul(ds, hk), heads),
          .dk = by_token(at::matmul(ds.transpose(1, 2), hq), kv_heads),
          .dv = by_token(at::matmul(p.transpose(1, 2), dy), kv_heads)};
}

Result expected(const Shape& s, at::ScalarType type) {
  const Operands x = operands(s, type, reference());
  const auto segments = tokens::make_segments(s.starts, at::kCPU);
  const auto like = [](const Tensor& t) { return at::empty(t.sizes(), at::kDouble); };
  const Result all{.out = like(x.q), .dq = like(x.q), .dk = like(x.k), .dv = like(x.v)};
  for (int64_t i = 0; i < segments.documents(); ++i) {
    const auto own = [&](const Tensor& t) { return t.narrow(0, segments.first(i), segments.length(i)); };
    const auto wide = [&](const Tensor& t) { return own(t).to(at::kDouble); };
    const Result one = plain_document(wide(x.q), wide(x.k), wide(x.v), wide(x.dout));
    for (size_t part = 0; part < 4; ++part) own(all.all()[part]).copy_(one.all()[part]);
  }
  return all;
}

Result run(const Shape& s, at::ScalarType type, BackEnd back_end, bool deterministic) {
  const Operands x = operands(s, type, subject());
  const auto segments = tokens::make_segments(s.starts, subject().device);
  Saved saved;
  const Tensor out = attention::attend_by(
      back_end, {.q = x.q, .k = x.k, .v = x.v, .documents = segments, .deterministic = deterministic}, saved);
  const Gradients grads = attention::attend_backward(x.dout, saved);
  CHECK(out.is_contiguous());
  return {.out = out, .dq = grads.dq, .dk = grads.dk, .dv = grads.dv};
}

void check_close(const Result& actual, const Result& expected, double tolerance) {
  for (size_t part = 0; part < 4; ++part) {
    INFO("of out, dq, dk, dv: " << part);
    const Tensor a = actual.all()[part].cpu().to(at::kDouble), e = expected.all()[part];
    REQUIRE(a.sizes() == e.sizes());
    CHECK(at::linalg_vector_norm(a.sub(e)).item<double>() <
          tolerance * at::linalg_vector_norm(e).item<double>());
  }
}

void check_same(const Result& a, const Result& b) {
  for (size_t part = 0; part < 4; ++part) CHECK(same_bits(a.all()[part], b.all()[part]));
}

// The call on this GPU.
attention::CallShape shape_of(const Shape& s, bool deterministic) {
  const auto segments = tokens::make_segments(s.starts, at::kCPU);
  return {.capability = kernels::compute_capability(subject().device),
          .heads = s.heads,
          .kv_heads = s.kv_heads,
          .head_dim = s.head_dim,
          .documents = segments.documents(),
          .longest = segments.longest,
          .tokens = segments.tokens(),
          .equal = segments.equal_lengths(),
          .deterministic = deterministic,
          .has_cudnn = attention::has_cudnn_attention()};
}

// Whether the back end is chosen on this GPU.
bool serves(BackEnd back_end, const Shape& s, bool deterministic) {
  return back_end != BackEnd::cudnn || attention::choose_on_gpu(shape_of(s, deterministic)) == back_end;
}

const std::vector<Shape> shapes{
    {{0, 256, 512, 768}, 8, 2, 128},             // a batch, grouped heads
    {{0, 512}, 4, 4, 64},                        // one document, a key-value head for each head
    {{0, 128, 256}, 6, 1, 64},                   // one key-value head
    {{0, 200, 203, 700, 701, 1000}, 8, 2, 128},  // ragged, three empty documents in cuDNN's plan
    {{0, 90, 180}, 4, 2, 64},                    // equal, but no multiple of 64
};

void check_back_end(BackEnd back_end, at::ScalarType type, double tolerance) {
  const bool deterministic = GENERATE(true, false);
  // The flag left by an earlier case would make FlashAttention-2 deterministic in every case.
  at::globalContext().setDeterministicAlgorithms(deterministic, /*warn_only=*/false);
  bool compared = false;
  for (const Shape& s : shapes) {
    INFO(s.starts.size() - 1 << " documents, " << s.starts.back() << " tokens, " << s.heads << " heads of "
                             << s.head_dim << ", deterministic " << deterministic);
    if (!serves(back_end, s, deterministic)) {
      WARN("not chosen on this GPU");
      continue;
    }
    compared = true;
    const Result first = run(s, type, back_end, deterministic);
    check_close(first, expected(s, type), tolerance);
    const Result again = run(s, type, back_end, deterministic);
    if (deterministic) check_same(first, again);
    CHECK(same_bits(first.out, again.out));
  }
  if (!compared) test::not_run("no shape is computed by this back end on this GPU");
}

}  // namespace

TEST_CASE("attention by cuDNN") {
  if (!can_run()) return;
  const c10::InferenceMode inference;
  const int capability = kernels::compute_capability(subject().device);
  if (capability >= 90 && capability < 120) REQUIRE(attention::has_cudnn_attention());
  check_back_end(BackEnd::cudnn, at::kBFloat16, 1e-2);
}

TEST_CASE("cuDNN has plans wherever it is chosen") {
  if (!can_run()) return;
  const c10::InferenceMode inference;
  const bool deterministic = GENERATE(true, false);
  for (const Shape& s : shapes) {
    if (!serves(BackEnd::cudnn, s, deterministic)) continue;
    const Operands x = operands(s, at::kBFloat16, subject());
    const auto segments = tokens::make_segments(s.starts, subject().device);
    CHECK(attention::why_not_cudnn(
              {.q = x.q, .k = x.k, .v = x.v, .documents = segments, .deterministic = deterministic}) == "");
  }
}

TEST_CASE("attention by FlashAttention-2") {
  if (!can_run()) return;
  const c10::InferenceMode inference;
  check_back_end(BackEnd::flash, at::kBFloat16, 1e-2);
}

TEST_CASE("attention in float32") {
  if (!can_run()) return;
  const c10::InferenceMode inference;
  check_back_end(BackEnd::efficient, at::kFloat, 1e-5);
}

// The plain operators are compared with float64 on the CPU in test/core/attention.
TEST_CASE("scales, windows and sinks by libraries, against plain operators") {
  if (!can_run()) return;
  const c10::InferenceMode inference;
  const BackEnd back_end = GENERATE(BackEnd::flash, BackEnd::flash_blocks, BackEnd::efficient);
  const auto type = back_end == BackEnd::efficient ? at::kFloat : at::kBFloat16;
  for (const Shape& s : shapes) {
    const Operands x = operands(s, type, subject());
    AttentionCall call{.q = x.q,
                       .k = x.k,
                       .v = x.v,
                       .documents = tokens::make_segments(s.starts, subject().device),
                       .scale = 0.05};
    if (attention::what_takes(back_end).window) call.window = 70;
    if (attention::what_takes(back_end).sinks) call.sinks = subject().random({s.heads}, at::kFloat, 3);
    const auto by = [&](BackEnd one) {
      Saved saved;
      const Tensor out = attention::attend_by(one, call, saved);
      const Gradients grads = attention::attend_backward(x.dout, saved);
      return Result{.out = out, .dq = grads.dq, .dk = grads.dk, .dv = grads.dv};
    };
    const Result plain = by(BackEnd::composed_blocks);
    const auto wide = [](const Tensor& t) { return t.cpu().to(at::kDouble); };
    check_close(by(back_end), {wide(plain.out), wide(plain.dq), wide(plain.dk), wide(plain.dv)},
                type == at::kFloat ? 1e-5 : 2e-2);
  }
}

TEST_CASE("cuDNN takes q and k that are no views of the fused qkv, as after QK-norm") {
  if (!can_run()) return;
  const c10::InferenceMode inference;
  const Shape& s = shapes.front();
  if (!serves(BackEnd::cudnn, s, true)) return test::not_run("cuDNN is not chosen on this GPU");
  const Operands x = operands(s, at::kBFloat16, subject());
  const auto segments = tokens::make_segments(s.starts, subject().device);
  Saved saved;
  const Tensor out = attention::attend_by(
      BackEnd::cudnn, {.q = x.q.contiguous(), .k = x.k.contiguous(), .v = x.v, .documents = segments}, saved);
  const Gradients grads = attention::attend_backward(x.dout, saved);
  check_same({.out = out, .dq = grads.dq, .dk = grads.dk, .dv = grads.dv},
             run(s, at::kBFloat16, BackEnd::cudnn, true));
}

// Compares with the heads of each key-value head run separately.
TEST_CASE("cuDNN: heads in parts have the bits of all heads at once") {
  if (!can_run()) return;
  const c10::InferenceMode inference;
  // Scores of 2 and 4 GiB: parts of 8 heads, and of 4.
  const auto [s, parts] =
      GENERATE(std::pair{Shape{{0, 8192}, 16, 4, 64}, 2}, std::pair{Shape{{0, 3000, 8000}, 16, 4, 64}, 4});
  if (!serves(BackEnd::cudnn, s, true)) return test::not_run("cuDNN is not chosen on this GPU");
  const int capability = kernels::compute_capability(subject().device);
  if (attention::writes_score_gradient(true, capability)) {
    CHECK(attention::cudnn_backward_parts(shape_of(s, true)) == parts);
  }
  const Result whole = run(s, at::kBFloat16, BackEnd::cudnn, true);
  const Operands x = operands(s, at::kBFloat16, subject());
  const auto segments = tokens::make_segments(s.starts, subject().device);
  const int64_t group = s.heads / s.kv_heads;
  for (int64_t i = 0; i < s.kv_heads; ++i) {
    const auto queries = [&](const Tensor& t) { return t.narrow(1, i * group, group); };
    const auto key = [&](const Tensor& t) { return t.narrow(1, i, 1); };
    Saved saved;
    const Tensor out = attention::attend_by(
        BackEnd::cudnn, {.q = queries(x.q), .k = key(x.k), .v = key(x.v), .documents = segments}, saved);
    const Gradients grads = attention::attend_backward(queries(x.dout), saved);
    check_same(
        {.out = out, .dq = grads.dq, .dk = grads.dk, .dv = grads.dv},
        {.out = queries(whole.out), .dq = queries(whole.dq), .dk = key(whole.dk), .dv = key(whole.dv)});
  }
}

TEST_CASE("blocks of a ring: gradients with equal bits") {
  if (!can_run()) return;
  const c10::InferenceMode inference;
  const Shape s{{0, 512}, 8, 2, 128};
  const Operands x = operands(s, at::kBFloat16, subject());
  const std::vector<tokens::AttentionBlock> blocks{
      {.query = 0, .rows = 512, .key = 0, .keys = 512, .causal = true},
      {.query = 256, .rows = 256, .key = 0, .keys = 128}};
  const auto f32 = x.q.options().dtype(at::kFloat);
  const auto gradients = [&] {
    const AttentionCall call{.q = x.q, .k = x.k, .v = x.v};
    attention::PartialAttention seen = attention::no_attention(call);
    attention::add_attention(call, blocks, seen);
    Gradients grads{.dq = at::zeros(x.q.sizes(), f32),
                    .dk = at::zeros(x.k.sizes(), f32),
                    .dv = at::zeros(x.v.sizes(), f32)};
    const Saved saved{.call = call,
                      .out = seen.out.to(at::kBFloat16),
                      .logsumexp = seen.logsumexp,
                      .back_end = seen.back_end};
    attention::add_attention_backward(x.dout, saved, blocks, grads);
    return Result{.out = seen.out, .dq = grads.dq, .dk = grads.dk, .dv = grads.dv};
  };
  check_same(gradients(), gradients());
}

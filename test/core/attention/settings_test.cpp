// Scale, softcap, window and sinks, by every back end that runs on the CPU, against autograd in float64.
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <array>
#include <cmath>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "core/attention/attention.h"
#include "core/attention/blocks.h"
#include "core/base/error.h"
#include "core/data/tokens/context_split.h"
#include "core/kernels/cpu/loops.h"
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
using attention::Gradients;
using attention::Saved;

namespace {

struct Result {
  Tensor out, dq, dk, dv, dsinks;
};

void put_settings(const ScoreSettings& settings, AttentionCall& call) {
  call.scale = settings.scale;
  call.softcap = settings.softcap;
  call.window = settings.window;
  if (settings.sinks.defined()) call.sinks = settings.sinks.to(at::kFloat);
}

AttentionCall random_call(const std::vector<int32_t>& starts, int64_t heads, int64_t kv_heads,
                          int64_t head_dim, at::ScalarType type, const ScoreSettings& settings) {
  const int64_t tokens = starts.back();
  // Views of one tensor, as of a fused qkv.
  const Tensor fused = random({tokens, heads + 2 * kv_heads, head_dim}, type);
  AttentionCall call{.q = fused.narrow(1, 0, heads),
                     .k = fused.narrow(1, heads, kv_heads),
                     .v = fused.narrow(1, heads + kv_heads, kv_heads),
                     .documents = tokens::make_segments(starts, at::kCPU)};
  put_settings(settings, call);
  return call;
}

Result oracle(const AttentionCall& call, const Tensor& dout, ScoreSettings settings) {
  const Tensor q = leaf(call.q), k = leaf(call.k), v = leaf(call.v);
  if (settings.sinks.defined()) settings.sinks = leaf(call.sinks);
  const Tensor out = masked_attention(q, k, v, call.documents, settings);
  out.backward(dout.to(at::kDouble));
  return {.out = out.detach(),
          .dq = q.grad(),
          .dk = k.grad(),
          .dv = v.grad(),
          .dsinks = settings.sinks.defined() ? settings.sinks.grad() : Tensor()};
}

Result by(BackEnd back_end, const AttentionCall& call, const Tensor& dout) {
  const c10::InferenceMode inference;
  Saved saved;
  const Tensor out = attention::attend_by(back_end, call, saved);
  const Gradients grads = attention::attend_backward(dout, saved);
  return {.out = out, .dq = grads.dq, .dk = grads.dk, .dv = grads.dv, .dsinks = grads.dsinks};
}

// Takes the keys of one of `ranks` after the other, as a ring does.
Result by_parts(BackEnd back_end, const AttentionCall& call, const Tensor& dout, int ranks) {
  const c10::InferenceMode inference;
  const auto split =
      tokens::split_rows(tokens::ContextOrder::contiguous, 1, call.documents.tokens(), ranks, 0);
  const auto zeros = [](const Tensor& x) { return at::zeros(x.sizes(), x.options().dtype(at::kFloat)); };
  Result all{.out = at::empty(call.q.sizes(), call.q.options()),
             .dq = zeros(call.q),
             .dk = zeros(call.k),
             .dv = zeros(call.v),
             .dsinks = call.sinks.defined() ? zeros(call.sinks) : Tensor()};
  const int64_t length = call.documents.tokens() / ranks;
  const auto own = [&](const Tensor& x, int rank) { return x.narrow(0, rank * length, length); };
  for (int r = 0; r < ranks; ++r) {
    const auto part = [&](int keys) {
      AttentionCall c = call;
      c.q = own(call.q, r);
      c.k = own(call.k, keys);
      c.v = own(call.v, keys);
      return c;
    };
    const auto blocks = [&](int keys) {
      return tokens::attention_blocks(tokens::document_pieces(split, r, call.documents),
                                      tokens::document_pieces(split, keys, call.documents), call.window);
    };
    attention::PartialAttention seen = attention::no_attention(part(r));
    seen.back_end = back_end;
    for (int s = 0; s < ranks; ++s) attention::add_attention(part(s), blocks(s), seen);
    own(all.out, r).copy_(seen.out);
    Saved saved{.call = part(r), .out = own(all.out, r), .logsumexp = seen.logsumexp, .back_end = back_end};
    for (int s = 0; s < ranks; ++s) {
      saved.call = part(s);
      Gradients grads{.dq = own(all.dq, r), .dk = own(all.dk, s), .dv = own(all.dv, s)};
      attention::add_attention_backward(own(dout, r), saved, blocks(s), grads);
    }
    if (call.sinks.defined()) all.dsinks.add_(attention::sink_gradient(own(dout, r), saved));
  }
  return all;
}

// If a row sees one key, its gradients of q and k are only rounding, so they are compared with dout.
void check_close(const Result& actual, const Result& expected, const Tensor& dout) {
  const double accuracy = tolerance(dout.scalar_type());
  const auto norm = [](const Tensor& x) { return x.to(at::kDouble).norm().item<double>(); };
  const auto error = [&](const Tensor& a, const Tensor& e, CallSite place = CallSite::current()) {
    return Difference(norm(a.to(at::kDouble) - e) / (norm(dout) + norm(e)), place);
  };
  CHECK(relative_error(actual.out, expected.out) < accuracy);
  CHECK(error(actual.dq, expected.dq) < accuracy);
  CHECK(error(actual.dk, expected.dk) < accuracy);
  CHECK(relative_error(actual.dv, expected.dv) < accuracy);
  REQUIRE(actual.dsinks.defined() == expected.dsinks.defined());
  if (actual.dsinks.defined()) CHECK(error(actual.dsinks, expected.dsinks) < accuracy);
}

void check_same(const Result& a, const Result& b) {
  CHECK(same_bits(a.out, b.out));
  CHECK(same_bits(a.dq, b.dq));
  CHECK(same_bits(a.dk, b.dk));
  CHECK(same_bits(a.dv, b.dv));
  if (a.dsinks.defined()) CHECK(same_bits(a.dsinks, b.dsinks));
}

// Each setting alone, and all together. Scores reach about 3, so that the cap bends them.
ScoreSettings settings_of(int64_t number, int64_t heads) {
  const Tensor sinks = at::randn({heads}).add_(1).to(at::kDouble);
  const std::array<ScoreSettings, 7> all{ScoreSettings{.scale = 0.9},
                                         {.softcap = 2},
                                         {.window = 1},
                                         {.window = 33},
                                         {.sinks = sinks},
                                         {.scale = 0.5, .softcap = 1.5, .window = 7, .sinks = sinks},
                                         {.softcap = 3, .window = 320, .sinks = sinks}};
  return all.at(static_cast<size_t>(number));
}

}  // namespace

TEST_CASE("settings of scores: values and gradients of whole documents", "[attention]") {
  at::set_num_threads(1);
  at::manual_seed(test::seed(9));
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const auto [heads, kv_heads, head_dim] = GENERATE(std::tuple{6, 2, 20}, std::tuple{3, 1, 64});
  const ScoreSettings settings = settings_of(GENERATE(range(0, 7)), heads);
  const AttentionCall call = random_call({0, 40, 41, 341, 350}, heads, kv_heads, head_dim, type, settings);
  const Tensor dout = random(call.q.sizes(), type);
  INFO("softcap " << settings.softcap << ", window " << settings.window << ", type " << c10::toString(type));
  const Result expected = oracle(call, dout, settings);
  const Result actual = by(BackEnd::cpu, call, dout);
  check_close(actual, expected, dout);
  check_close(by(BackEnd::composed_blocks, call, dout), expected, dout);
  at::set_num_threads(3);
  check_same(by(BackEnd::cpu, call, dout), actual);
  at::set_num_threads(1);
}

TEST_CASE("settings of scores: keys that come in parts", "[attention]") {
  at::manual_seed(test::seed(10));
  at::set_num_threads(1);
  const BackEnd back_end = GENERATE(BackEnd::cpu_blocks, BackEnd::composed_blocks);
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const ScoreSettings settings = settings_of(GENERATE(range(0, 7)), 4);
  const AttentionCall call = random_call({0, 1, 2, 140, 141, 377, 396}, 4, 2, 10, type, settings);
  const Tensor dout = random(call.q.sizes(), type);
  INFO("softcap " << settings.softcap << ", window " << settings.window << ", type " << c10::toString(type));
  const Result actual = by_parts(back_end, call, dout, 3);
  check_close(actual, oracle(call, dout, settings), dout);
  at::set_num_threads(3);
  if (back_end == BackEnd::cpu_blocks) check_same(by_parts(back_end, call, dout, 3), actual);
  at::set_num_threads(1);
}

TEST_CASE("a window over several tiles of keys", "[attention]") {
  at::manual_seed(test::seed(12));
  at::set_num_threads(1);
  const ScoreSettings settings{.window = GENERATE(1000, 1500, 2600)};
  const AttentionCall call = random_call({0, 2600}, 1, 1, 8, at::kFloat, settings);
  const Tensor dout = random(call.q.sizes(), at::kFloat);
  const Result expected = oracle(call, dout, settings);
  check_close(by(BackEnd::cpu, call, dout), expected, dout);
  for (const int ranks : {1, 2}) {
    check_close(by_parts(BackEnd::cpu_blocks, call, dout, ranks), expected, dout);
    check_close(by_parts(BackEnd::composed_blocks, call, dout, ranks), expected, dout);
  }
}

TEST_CASE("a window as long as the documents changes no bits, and a shorter one costs less", "[attention]") {
  at::manual_seed(test::seed(13));
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  AttentionCall call = random_call({0, 300, 410}, 4, 2, 16, type, {});
  const Tensor dout = random(call.q.sizes(), type);
  const Result whole = by(BackEnd::cpu, call, dout);
  call.window = 300;
  check_same(by(BackEnd::cpu, call, dout), whole);
  call.scale = 1 / std::sqrt(16.0);
  check_same(by(BackEnd::cpu, call, dout), whole);

  const c10::InferenceMode inference;
  const auto meta = [](const Tensor& x) { return at::empty(x.sizes(), x.options().device(at::kMeta)); };
  call.q = meta(call.q), call.k = meta(call.k), call.v = meta(call.v);
  call.documents = tokens::make_segments({0, 300, 410}, at::kMeta);
  const auto flops = [&](int64_t window) {
    call.window = window;
    const kernels::DryRun run;
    Saved saved;
    attention::attend_backward(attention::attend(call, saved), saved);
    return run.cost().attention_flops;
  };
  CHECK(flops(0) == 7 * 2 * 4 * 16 * (300.0 * 300 + 110 * 110) / 2);
  CHECK(flops(300) == flops(0));
  // 10 of 300 rows see up to 10 keys, the others 10; a row's own key counts half.
  CHECK(flops(10) == 7 * 2 * 4 * 16 * (2 * 10.0 * 10 / 2 + (290 + 100) * 9.5));
}

TEST_CASE("sinks that outweigh all keys, and those that weigh nothing", "[attention]") {
  at::manual_seed(test::seed(14));
  const double sink = GENERATE(-300.0, 40.0, 800.0);
  const ScoreSettings settings{.sinks = at::full({2}, sink, at::kDouble)};
  const AttentionCall call = random_call({0, 70}, 2, 1, 8, at::kFloat, settings);
  const Tensor dout = random(call.q.sizes(), at::kFloat);
  const Result expected = oracle(call, dout, settings);
  // A sink's gradient is a sum over the tokens, which may cancel.
  const Tensor terms = (dout.to(at::kDouble) * expected.out).sum(-1).abs().sum(0);
  const Tensor size = sink > 0 ? terms : expected.dsinks.abs();
  for (const Result& actual : {by(BackEnd::cpu, call, dout), by_parts(BackEnd::cpu_blocks, call, dout, 2)}) {
    CHECK(relative_error(actual.out, expected.out) < 1e-5);
    CHECK(relative_error(actual.dv, expected.dv) < 1e-5);
    CHECK(largest((actual.dsinks.to(at::kDouble) - expected.dsinks) / (size + 1e-25)) < 1e-5);
  }
}

TEST_CASE("sinks of another type or number are refused", "[attention]") {
  AttentionCall call = random_call({0, 8}, 4, 2, 8, at::kFloat, {});
  for (const Tensor& sinks : {at::ones({2}), at::ones({4}, at::kBFloat16), at::ones({4, 1})}) {
    call.sinks = sinks;
    Saved saved;
    CHECK_THROWS_WITH(attention::attend(call, saved),
                      "attention: sinks must be float32, one of each of 4 heads");
  }
}

namespace {

// Rows of scores with a softcap and a window: their weights and log-sum-exp, and gradients of scores.
std::vector<Tensor> capped_rows(const kernels::cpu::Loops& loops, const Tensor& scores) {
  constexpr int64_t rows = 5, keys = 100, dim = 24;
  const kernels::cpu::ScoreRule rule{
      .first = 60, .rows = rows, .keys = keys, .window = 37, .scale = 0.7F, .softcap = 4};
  const auto floats = [](at::IntArrayRef sizes) { return at::empty(sizes); };
  const auto data = [](const Tensor& x) { return x.mutable_data_ptr<float>(); };
  const Tensor weights = floats({rows, keys}), sums = floats({rows}), logsumexp = floats({rows});
  const Tensor forward = scores.clone(), backward = scores.clone(), p = floats({rows, keys}),
               dscores = floats({rows, keys});
  loops.f32.attention_softmax(rule, data(forward), data(weights), data(sums), data(logsumexp));
  const Tensor dout_rows = at::linspace(-1, 1, rows * dim), out_rows = at::linspace(2, -1, rows * dim);
  const kernels::cpu::Matrix<const float> dout{data(dout_rows), dim}, out{data(out_rows), dim};
  loops.f32.attention_gradient({.scores = data(backward),
                                .dweights = data(scores),
                                .logsumexp = data(logsumexp),
                                .dout = dout,
                                .out = out,
                                .weights = data(p),
                                .dscores = data(dscores),
                                .head_dim = dim,
                                .rule = rule});
  const Tensor dsink =
      at::full({1}, loops.f32.sink_gradient(dout, out, data(logsumexp), 0.5F, rows, dim), at::kDouble);
  return {weights, logsumexp, p, dscores, dsink};
}

}  // namespace

TEST_CASE("all instruction sets give the same capped scores", "[attention]") {
  at::manual_seed(test::seed(15));
  const Tensor scores = at::randn({5, 100}).mul_(8);
  const std::vector<Tensor> baseline = capped_rows(kernels::cpu::baseline_table, scores);
  std::vector<std::vector<Tensor>> fused;  // those with FMA: the same bits
  for (const kernels::cpu::Loops* loops : kernels::cpu::available_loops()) {
    if (loops == &kernels::cpu::baseline_table) continue;
    fused.push_back(capped_rows(*loops, scores));
    for (size_t i = 0; i < baseline.size(); ++i) {
      CHECK(relative_error(fused.back()[i], baseline[i]) < 1e-6);
      CHECK(same_bits(fused.back()[i], fused.front()[i]));
    }
  }
}

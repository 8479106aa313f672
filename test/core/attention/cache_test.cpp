// Attention over cached keys against a mask over the whole documents.
#include "core/attention/cache.h"

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <vector>

#include "core/base/error.h"
#include "test/core/attention/attention_oracle.h"
#include "test/core/kernels/compare.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

using namespace pptrain;
using namespace pptrain::test;
using at::Tensor;
using attention::BackEnd;

namespace {

constexpr int64_t layers = 2;

// Documents of these lengths, with the q, k and v of every layer.
struct Documents {
  std::vector<int64_t> lengths;
  std::vector<Tensor> q, k, v;  // per layer: [sum of lengths, heads, head_dim]

  tokens::Segments segments() const {
    std::vector<int32_t> starts{0};
    for (const int64_t length : lengths) starts.push_back(starts.back() + static_cast<int32_t>(length));
    return tokens::make_segments(starts, at::kCPU);
  }
};

Documents random_documents(std::vector<int64_t> lengths, int64_t heads, int64_t kv_heads, int64_t head_dim,
                           at::ScalarType type) {
  at::manual_seed(test::seed(3));
  Documents documents{.lengths = std::move(lengths), .q = {}, .k = {}, .v = {}};
  const int64_t tokens = documents.segments().tokens();
  for (int64_t layer = 0; layer < layers; ++layer) {
    documents.q.push_back(random({tokens, heads, head_dim}, type));
    // Views of a wider tensor, as of a fused qkv.
    const Tensor kv = random({tokens, 2 * kv_heads, head_dim}, type);
    documents.k.push_back(kv.narrow(1, 0, kv_heads));
    documents.v.push_back(kv.narrow(1, kv_heads, kv_heads));
  }
  return documents;
}

// The rows of `x` at these places of each document.
Tensor rows_at(const Documents& documents, const Tensor& x, const std::vector<int64_t>& first,
               const std::vector<int64_t>& count) {
  std::vector<Tensor> parts;
  const tokens::Segments segments = documents.segments();
  for (size_t i = 0; i < documents.lengths.size(); ++i)
    parts.push_back(x.narrow(0, segments.first(static_cast<int64_t>(i)) + first[i], count[i]));
  return test::cat(parts);
}

attention::AttentionCall call_of(const Tensor& q, const Tensor& k, const Tensor& v,
                                 const std::vector<int64_t>& lengths, const ScoreSettings& settings = {}) {
  std::vector<int32_t> starts{0};
  for (const int64_t length : lengths) starts.push_back(starts.back() + static_cast<int32_t>(length));
  return {.q = q,
          .k = k,
          .v = v,
          .documents = tokens::make_segments(starts, at::kCPU),
          .scale = settings.scale,
          .softcap = settings.softcap,
          .window = settings.window,
          .sinks = settings.sinks.defined() ? settings.sinks.to(at::kFloat) : Tensor()};
}

// None, and all at once.
ScoreSettings settings_of(bool all, int64_t heads) {
  if (!all) return {};
  return {.scale = 0.4, .softcap = 2, .window = 11, .sinks = at::linspace(-1, 2, heads, at::kDouble)};
}

}  // namespace

TEST_CASE("prompts at once and then token by token give what whole documents give", "[cached]") {
  const c10::InferenceMode inference;
  at::set_num_threads(GENERATE(1, 3));
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const auto [heads, kv_heads, head_dim] =
      GENERATE(std::tuple{3, 1, 20}, std::tuple{4, 4, 64}, std::tuple{10, 2, 136});
  const ScoreSettings settings = settings_of(GENERATE(false, true), heads);
  const Documents documents = random_documents({23, 9, 40}, heads, kv_heads, head_dim, type);
  const std::vector<int64_t> prompts{5, 1, 24};
  const std::vector<int64_t> slots{2, 0, 1}, capacities{9, 40, 23};
  attention::KeyValueCache cache(
      {.layers = layers, .kv_heads = kv_heads, .head_dim = head_dim, .dtype = type}, capacities);
  CHECK(cache.bytes() ==
        layers * 2 * 72 * kv_heads * head_dim * static_cast<int64_t>(c10::elementSize(type)));
  attention::CachedAttention cached(attention::make_local_attention());

  std::vector<Tensor> expected;
  for (int64_t layer = 0; layer < layers; ++layer) {
    const auto wide = [](const Tensor& x) { return x.to(at::kDouble); };
    const auto l = static_cast<size_t>(layer);
    expected.push_back(masked_attention(wide(documents.q[l]), wide(documents.k[l]), wide(documents.v[l]),
                                        documents.segments(), settings));
  }
  // A pass over `count` tokens of each document that is not at its end.
  std::vector<int64_t> past(3, 0);
  const auto pass = [&](const std::vector<int64_t>& count) {
    std::vector<attention::CachedDocument> active;
    std::vector<int64_t> lengths;
    for (size_t i = 0; i < 3; ++i) {
      if (count[i] == 0) continue;
      active.push_back({.slot = slots[i], .past = past[i]});
      lengths.push_back(count[i]);
    }
    const attention::CachedAttention::Use use(cached, cache, active);
    for (size_t layer = 0; layer < layers; ++layer) {
      const auto rows = [&](const Tensor& x) { return rows_at(documents, x, past, count); };
      attention::Saved saved;
      const Tensor out = cached.forward(call_of(rows(documents.q[layer]), rows(documents.k[layer]),
                                                rows(documents.v[layer]), lengths, settings),
                                        saved);
      CHECK(relative_error(out, rows(expected[layer])) < tolerance(type));
    }
    for (size_t i = 0; i < 3; ++i) past[i] += count[i];
  };
  pass(prompts);
  while (past != documents.lengths) {
    std::vector<int64_t> count;
    for (size_t i = 0; i < 3; ++i) count.push_back(past[i] < documents.lengths[i] ? 1 : 0);
    pass(count);
  }
  at::set_num_threads(1);
}

TEST_CASE("documents whose keys are computed again go in one pass with those that grow by a token",
          "[cached]") {
  const c10::InferenceMode inference;
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const ScoreSettings settings = settings_of(GENERATE(false, true), 4);
  const Documents documents = random_documents({12, 9, 30, 6}, 4, 2, 20, type);
  attention::KeyValueCache cache({.layers = layers, .kv_heads = 2, .head_dim = 20, .dtype = type},
                                 documents.lengths);
  attention::CachedAttention cached(attention::make_local_attention());
  const auto pass = [&](const std::vector<int64_t>& past, const std::vector<int64_t>& count) {
    std::vector<attention::CachedDocument> active;
    for (size_t i = 0; i < past.size(); ++i)
      active.push_back({.slot = static_cast<int64_t>(i), .past = past[i]});
    const attention::CachedAttention::Use use(cached, cache, active);
    std::vector<Tensor> out;
    for (size_t layer = 0; layer < layers; ++layer) {
      const auto rows = [&](const Tensor& x) { return rows_at(documents, x, past, count); };
      attention::Saved saved;
      out.push_back(cached.forward(call_of(rows(documents.q[layer]), rows(documents.k[layer]),
                                           rows(documents.v[layer]), count, settings),
                                   saved));
    }
    return out;
  };
  pass({0, 0, 0, 0}, {11, 8, 29, 5});
  const std::vector<int64_t> past{11, 0, 29, 0}, count{1, 9, 1, 6};
  const std::vector<Tensor> ours = pass(past, count);
  for (size_t layer = 0; layer < layers; ++layer) {
    const auto wide = [](const Tensor& x) { return x.to(at::kDouble); };
    const Tensor expected = masked_attention(wide(documents.q[layer]), wide(documents.k[layer]),
                                             wide(documents.v[layer]), documents.segments(), settings);
    CHECK(relative_error(ours[layer], rows_at(documents, expected, past, count)) < tolerance(type));
  }
  CHECK_THROWS_WITH(pass({11, 0, 27, 0}, {1, 9, 2, 6}), contains_text("2 new tokens behind earlier ones"));
}

TEST_CASE("ATen's library gives what the kernel gives", "[cached]") {
  const c10::InferenceMode inference;
  at::manual_seed(test::seed(4));
  attention::KeyValueCache cache({.layers = 1, .kv_heads = 2, .head_dim = 16}, std::vector<int64_t>{7, 30});
  for (int64_t slot = 0; slot < 2; ++slot) {
    const int64_t tokens = cache.capacity(slot);
    cache.write(0, slot, 0, at::randn({tokens, 2, 16}), at::randn({tokens, 2, 16}));
  }
  const attention::AttentionCall call{.q = at::randn({2, 6, 16}),
                                      .k = {},
                                      .v = {},
                                      .scale = GENERATE(std::optional<double>(), 0.7),
                                      .softcap = GENERATE(0.0, 1.5),
                                      .window = GENERATE(0, 9),
                                      .sinks = GENERATE(Tensor(), at::linspace(-1, 1, 6))};
  const std::vector<attention::CachedDocument> documents{{.slot = 1, .past = 28}, {.slot = 0, .past = 0}};
  const auto by = [&](BackEnd back_end) {
    return attention::attend_to_cache(back_end, call, cache, 0, documents);
  };
  CHECK(relative_error(by(BackEnd::library_decode), by(BackEnd::cpu_decode)) < 1e-6);
}

TEST_CASE("outside of a use the inner attention runs, and misuse is an error", "[cached]") {
  const c10::InferenceMode inference;
  at::manual_seed(test::seed(5));
  const auto local = attention::make_local_attention();
  attention::CachedAttention cached(local);
  const Tensor q = at::randn({6, 4, 8}), kv = at::randn({6, 2, 8});
  attention::Saved saved, other;
  CHECK(same_bits(cached.forward(call_of(q, kv, kv, {2, 4}), saved),
                  local->forward(call_of(q, kv, kv, {2, 4}), other)));
  CHECK(cached.backward(q, saved).dq.sizes() == q.sizes());

  attention::KeyValueCache cache({.layers = 1, .kv_heads = 2, .head_dim = 8}, std::vector<int64_t>{5});
  const auto run = [&](std::vector<attention::CachedDocument> documents, int64_t tokens) {
    const attention::CachedAttention::Use use(cached, cache, documents);
    const Tensor own_kv = kv.narrow(0, 0, tokens);
    cached.forward(call_of(q.narrow(0, 0, tokens), own_kv, own_kv, {tokens}), saved);
  };
  CHECK_THROWS_WITH(run({{.slot = 0, .past = 0}}, 6), contains_text("tokens [0, 6)"));
  CHECK_THROWS_WITH(run({{.slot = 0, .past = 2}}, 2), contains_text("2 new tokens"));
  CHECK_THROWS_WITH(run({{.slot = 0, .past = 0}, {.slot = 0, .past = 0}}, 2), contains_text("2 documents"));
  CHECK_THROWS_AS(
      attention::KeyValueCache({.layers = 1, .kv_heads = 2, .head_dim = 8}, std::vector<int64_t>{0}), Error);
}

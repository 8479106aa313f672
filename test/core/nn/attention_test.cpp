// Attention and its parts, against LibTorch's autograd in float64 on an explicit softmax.
#include "core/nn/attention.h"

#include <ATen/Parallel.h>
#include <ATen/TensorIndexing.h>
#include <ATen/core/IListRef.h>
#include <c10/core/InferenceMode.h>

#include <cmath>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/kernels/cpu/attention.h"
#include "core/nn/rope.h"
#include "test/core/kernels/compare.h"
#include "test/core/nn/gradients.h"
#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::test;
using at::Tensor;
using Mode = nn::WeightGradQueue::Mode;

namespace {

tokens::Segments segments_of(const std::vector<int32_t>& starts) {
  return tokens::make_segments(starts, at::kCPU);
}

// q: [tokens, heads, head_dim]; k, v: [tokens, kv_heads, head_dim], each document alone.
Tensor plain_attention(const Tensor& q, const Tensor& k, const Tensor& v, const tokens::Segments& segments) {
  const int64_t group = q.size(1) / k.size(1);
  const auto heads = [&](const Tensor& x, int64_t document) {
    return x.narrow(0, segments.first(document), segments.length(document)).transpose(0, 1);
  };
  std::vector<Tensor> out;
  for (int64_t i = 0; i < segments.documents(); ++i) {
    const Tensor keys = heads(k, i).repeat_interleave(group, 0);
    const Tensor values = heads(v, i).repeat_interleave(group, 0);
    const Tensor scores =
        heads(q, i).matmul(keys.transpose(1, 2)) / std::sqrt(static_cast<double>(q.size(2)));
    const Tensor future = at::ones({segments.length(i), segments.length(i)}, at::kBool).triu(1);
    out.push_back(at::softmax(scores.masked_fill(future, -INFINITY), -1).matmul(values).transpose(0, 1));
  }
  return at::cat(out, 0);
}

struct Oracle {
  Tensor x, y;
  std::vector<std::pair<std::string, Tensor>> weights;
};

Oracle plain_layer(nn::ParameterGroup& store, const nn::AttentionConfig& c, const Tensor& x,
                   const nn::TokenInfo& tokens) {
  Oracle o{.x = leaf(x), .y = {}, .weights = {}};
  const auto weight = [&](const std::string& name) {
    o.weights.emplace_back(name, leaf(name.find("norm") == std::string::npos ? store.find(name)->compute
                                                                             : store.find(name)->master));
    return o.weights.back().second;
  };
  const auto project = [&](const std::string& part, int64_t heads) {
    Tensor y = o.x.mm(weight("attn." + part + ".weight").t());
    if (c.qkv_bias) y = y + weight("attn." + part + ".bias");
    return y.view({x.size(0), heads, c.head_dim});
  };
  Tensor q = project("q", c.heads), k = project("k", c.kv_heads);
  const Tensor v = project("v", c.kv_heads);
  if (c.qk_norm) {
    q = test::rms_norm(q, weight("attn.q_norm.weight"), c.norm_eps);
    k = test::rms_norm(k, weight("attn.k_norm.weight"), c.norm_eps);
  }
  const Tensor cos = tokens.rope.cos.index({tokens.positions.to(at::kLong)}).to(at::kDouble);
  const Tensor sin = tokens.rope.sin.index({tokens.positions.to(at::kLong)}).to(at::kDouble);
  const Tensor out =
      plain_attention(test::rotate(q, cos, sin), test::rotate(k, cos, sin), v, tokens.segments);
  o.y = out.reshape({x.size(0), c.heads * c.head_dim}).mm(weight("attn.o.weight").t());
  if (c.o_bias) o.y = o.y + weight("attn.o.bias");
  return o;
}

const nn::AttentionConfig kConfigs[] = {
    {.hidden = 32, .heads = 4, .kv_heads = 4, .head_dim = 8, .init_std = 0.2, .o_init_std = 0.2},
    {.hidden = 40,
     .heads = 6,
     .kv_heads = 2,
     .head_dim = 16,
     .qk_norm = true,
     .init_std = 0.2,
     .o_init_std = 0.2},
    {.hidden = 24,
     .heads = 3,
     .kv_heads = 1,
     .head_dim = 10,
     .qkv_bias = true,
     .init_std = 0.2,
     .o_init_std = 0.2},
    {.hidden = 24,
     .heads = 2,
     .kv_heads = 2,
     .head_dim = 6,
     .qkv_bias = true,
     .o_bias = true,
     .qk_norm = true,
     .init_std = 0.2,
     .o_init_std = 0.2},
};

void fill_vectors(nn::ParameterGroup& store) {
  for (nn::Slice* p : store.slices()) {
    if (p->master.dim() == 1) p->master.uniform_(0.5, 1.5);
  }
  store.refresh_compute();
}

}  // namespace

TEST_CASE("causal_attention: values and gradients, each document by itself", "[nn]") {
  at::set_num_threads(1);
  at::manual_seed(4);
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  // Of equal lengths: one block of rows, and several with a rest; and of unequal ones.
  const auto segments =
      segments_of(GENERATE(std::vector<int32_t>{0, 1}, std::vector<int32_t>{0, 33, 66},
                           std::vector<int32_t>{0, 300, 600}, std::vector<int32_t>{0, 40, 41, 341, 350}));
  const auto [heads, kv_heads, head_dim] =
      GENERATE(std::tuple{4, 4, 16}, std::tuple{6, 2, 20}, std::tuple{3, 1, 64});
  const Tensor fused = random({segments.tokens(), heads + 2 * kv_heads, head_dim}, type);
  const Tensor q = fused.narrow(1, 0, heads), k = fused.narrow(1, heads, kv_heads),
               v = fused.narrow(1, heads + kv_heads, kv_heads);
  const Tensor dout = random(q.sizes(), type);
  const Tensor oq = leaf(q), ok = leaf(k), ov = leaf(v);
  const Tensor oout = plain_attention(oq, ok, ov, segments);
  oout.backward(dout.to(at::kDouble));
  const double noise = tolerance(type) * dout.to(at::kDouble).norm().item<double>();

  const c10::InferenceMode inference;
  nn::AttentionStatistics stats;
  const Tensor out = nn::causal_attention(q, k, v, segments, stats);
  CHECK(out.is_contiguous());
  CHECK(out.sizes() == q.sizes());
  CHECK(relative_error(out, oout) < tolerance(type));
  const nn::AttentionGradients grads = nn::causal_attention_backward(dout, q, k, v, segments, out, stats);
  CHECK((grads.dq.to(at::kDouble) - oq.grad()).norm().item<double>() < noise);
  CHECK((grads.dk.to(at::kDouble) - ok.grad()).norm().item<double>() < noise);
  CHECK(relative_error(grads.dv, ov.grad()) < tolerance(type));
}

TEST_CASE("a document's attention has the same bits alone and among others", "[nn]") {
  at::set_num_threads(1);
  at::manual_seed(8);
  const c10::InferenceMode inference;
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const auto segments = segments_of({0, 7, 207, 240});
  const Tensor q = random({240, 4, 16}, type), k = random({240, 2, 16}, type), v = random({240, 2, 16}, type),
               dout = random({240, 4, 16}, type);
  nn::AttentionStatistics stats;
  const Tensor out = nn::causal_attention(q, k, v, segments, stats);
  const auto grads = nn::causal_attention_backward(dout, q, k, v, segments, out, stats);
  for (int64_t i = 0; i < segments.documents(); ++i) {
    const auto own = [&](const Tensor& x) { return x.narrow(0, segments.first(i), segments.length(i)); };
    const auto one = tokens::equal_segments(1, segments.length(i), at::kCPU);
    nn::AttentionStatistics own_stats;
    const Tensor own_out = nn::causal_attention(own(q), own(k), own(v), one, own_stats);
    CHECK(same_bits(own_out, own(out)));
    const auto own_grads =
        nn::causal_attention_backward(own(dout), own(q), own(k), own(v), one, own_out, own_stats);
    CHECK(same_bits(own_grads.dq, own(grads.dq)));
    CHECK(same_bits(own_grads.dk, own(grads.dk)));
    CHECK(same_bits(own_grads.dv, own(grads.dv)));
  }
}

TEST_CASE("causal_attention does not look ahead, passes NaN on, and ignores the number of threads", "[nn]") {
  at::manual_seed(6);
  at::set_num_threads(1);
  const c10::InferenceMode inference;
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const auto segments = segments_of({0, 200, 230});
  const Tensor q = random({230, 4, 16}, type), dout = random({230, 4, 16}, type);
  Tensor k = random({230, 2, 16}, type), v = random({230, 2, 16}, type);
  nn::AttentionStatistics stats;
  const Tensor out = nn::causal_attention(q, k, v, segments, stats);
  const nn::AttentionGradients grads = nn::causal_attention_backward(dout, q, k, v, segments, out, stats);

  at::set_num_threads(2);
  nn::AttentionStatistics other;
  CHECK(same_bits(nn::causal_attention(q, k, v, segments, other), out));
  const nn::AttentionGradients again = nn::causal_attention_backward(dout, q, k, v, segments, out, other);
  CHECK(same_bits(again.dq, grads.dq));
  CHECK(same_bits(again.dk, grads.dk));
  CHECK(same_bits(again.dv, grads.dv));
  at::set_num_threads(1);
  k.narrow(0, 150, 50).fill_(30);
  v.narrow(0, 150, 50).fill_(100);
  const Tensor later = nn::causal_attention(q, k, v, segments, stats);
  CHECK(same_bits(later.narrow(0, 0, 150), out.narrow(0, 0, 150)));
  CHECK(same_bits(later.narrow(0, 200, 30), out.narrow(0, 200, 30)));  // the next document
  k[150].fill_(std::nan(""));
  const Tensor broken = nn::causal_attention(q, k, v, segments, stats);
  CHECK(broken.narrow(0, 150, 50).isnan().all().item<bool>());
  CHECK(same_bits(broken.narrow(0, 200, 30), out.narrow(0, 200, 30)));
}

TEST_CASE("Attention: forward, backward_input, backward_weight", "[nn]") {
  at::set_num_threads(1);
  at::manual_seed(9);
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const auto index = GENERATE(0, 1, 2, 3);
  const nn::AttentionConfig config = kConfigs[index];
  const auto starts = GENERATE(std::vector<int32_t>{0, 21, 42}, std::vector<int32_t>{0, 5, 35, 36, 42});
  const nn::TokenInfo tokens{
      // The second half begins at a position of its own, as documents that were cut do.
      .positions = at::cat({at::arange(21, at::kInt), at::arange(21, at::kInt) + 40}),
      .segments = segments_of(starts),
      .rope = nn::make_rope_table(config.head_dim, 64, 10000, {}, at::kCPU)};
  nn::ParameterGroup store;
  nn::Attention layer(store, "attn", config);
  store.materialise(at::kCPU, type);
  store.initialise(5);
  fill_vectors(store);
  const Tensor x = random({42, config.hidden}, type), dy = random({42, config.hidden}, type);
  const Oracle oracle = plain_layer(store, config, x, tokens);
  oracle.y.backward(dy.to(at::kDouble));

  const c10::InferenceMode inference;
  nn::Attention::Saved saved;
  CHECK(relative_error(layer.forward(x, tokens, saved), oracle.y) < 2 * tolerance(type));
  nn::WeightGradQueue queue(Mode::immediate);
  CHECK(relative_error(layer.backward_input(saved, dy, tokens, queue), oracle.x.grad()) <
        2 * tolerance(type));
  for (const Tensor& tensor : saved.tensors()) CHECK_FALSE(tensor.defined());
  CHECK(oracle.weights.size() == store.slices().size());
  for (const auto& [name, weight] : oracle.weights) {
    INFO(name);
    // A constant added to all keys changes no softmax: the k bias has no gradient but rounding.
    const double error = (store.find(name)->grad.to(at::kDouble) - weight.grad()).norm().item<double>();
    CHECK(error < 2 * tolerance(type) *
                      (weight.grad().norm().item<double>() + 0.1 * dy.to(at::kDouble).norm().item<double>()));
  }

  SECTION("deferred equals immediate bit for bit") {
    const Tensor immediate = all_gradients(store);
    store.zero_grad();
    nn::WeightGradQueue deferred(Mode::deferred);
    layer.forward(x, tokens, saved);
    layer.backward_input(saved, dy, tokens, deferred);
    CHECK(deferred.size() == 2);
    deferred.run();
    CHECK(same_bits(all_gradients(store), immediate));
  }
}

TEST_CASE("Attention refuses heads that cannot be grouped", "[nn]") {
  nn::ParameterGroup store;
  CHECK_THROWS_AS(nn::Attention(store, "a", {.hidden = 8, .heads = 4, .kv_heads = 3, .head_dim = 2}), Error);
  CHECK_THROWS_AS(nn::Attention(store, "a", {.hidden = 8, .heads = 4, .kv_heads = 2, .head_dim = 3}), Error);
}

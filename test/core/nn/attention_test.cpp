// Attention and its parts, against LibTorch's autograd in float64 on an explicit softmax.
#include "core/nn/attention.h"

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <cmath>

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

// q: [batch, seq, heads, head_dim]; k, v: [batch, seq, kv_heads, head_dim].
Tensor plain_attention(const Tensor& q, const Tensor& k, const Tensor& v) {
  const int64_t group = q.size(2) / k.size(2);
  const Tensor keys = k.repeat_interleave(group, 2).transpose(1, 2);
  const Tensor values = v.repeat_interleave(group, 2).transpose(1, 2);
  const Tensor scores =
      q.transpose(1, 2).matmul(keys.transpose(2, 3)) / std::sqrt(static_cast<double>(q.size(3)));
  const Tensor future = at::ones({q.size(1), q.size(1)}, at::kBool).triu(1);
  return at::softmax(scores.masked_fill(future, -INFINITY), -1).matmul(values).transpose(1, 2);
}

struct Oracle {
  Tensor x, y;
  std::vector<std::pair<std::string, Tensor>> weights;
};

Oracle plain_layer(nn::ParameterGroup& store, const nn::AttentionConfig& c, const Tensor& x,
                   const Tensor& positions, const kernels::RopeTable& rope) {
  Oracle o{.x = leaf(x), .y = {}, .weights = {}};
  const auto weight = [&](const std::string& name) {
    o.weights.emplace_back(name, leaf(name.find("norm") == std::string::npos ? store.find(name)->compute
                                                                             : store.find(name)->master));
    return o.weights.back().second;
  };
  const int64_t batch = positions.size(0), seq = positions.size(1);
  const auto project = [&](const std::string& part, int64_t heads) {
    Tensor y = o.x.mm(weight("attn." + part + ".weight").t());
    if (c.qkv_bias) y = y + weight("attn." + part + ".bias");
    return y.view({batch, seq, heads, c.head_dim});
  };
  Tensor q = project("q", c.heads), k = project("k", c.kv_heads);
  const Tensor v = project("v", c.kv_heads);
  if (c.qk_norm) {
    q = test::rms_norm(q, weight("attn.q_norm.weight"), c.norm_eps);
    k = test::rms_norm(k, weight("attn.k_norm.weight"), c.norm_eps);
  }
  const Tensor cos = rope.cos.index({positions.to(at::kLong)}).to(at::kDouble);
  const Tensor sin = rope.sin.index({positions.to(at::kLong)}).to(at::kDouble);
  const Tensor out = plain_attention(test::rotate(q, cos, sin), test::rotate(k, cos, sin), v);
  o.y = out.reshape({batch * seq, c.heads * c.head_dim}).mm(weight("attn.o.weight").t());
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

TEST_CASE("causal_attention: values and gradients", "[nn]") {
  at::set_num_threads(1);
  at::manual_seed(4);
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const auto seq = GENERATE(1, 33, 300);  // one block, and several with a rest
  const auto [heads, kv_heads, head_dim] =
      GENERATE(std::tuple{4, 4, 16}, std::tuple{6, 2, 20}, std::tuple{3, 1, 64});
  const Tensor fused = random({2, seq, heads + 2 * kv_heads, head_dim}, type);
  const Tensor q = fused.narrow(2, 0, heads), k = fused.narrow(2, heads, kv_heads),
               v = fused.narrow(2, heads + kv_heads, kv_heads);
  const Tensor dout = random({2, seq, heads, head_dim}, type);
  const Tensor oq = leaf(q), ok = leaf(k), ov = leaf(v);
  const Tensor oout = plain_attention(oq, ok, ov);
  oout.backward(dout.to(at::kDouble));

  const c10::InferenceMode inference;
  nn::AttentionStatistics stats;
  const Tensor out = nn::causal_attention(q, k, v, stats);
  CHECK(out.is_contiguous());
  CHECK(relative_error(out, oout) < tolerance(type));
  const nn::AttentionGradients grads = nn::causal_attention_backward(dout, q, k, v, out, stats);
  const double noise = tolerance(type) * dout.to(at::kDouble).norm().item<double>();
  CHECK((grads.dq.to(at::kDouble) - oq.grad()).norm().item<double>() < noise);
  CHECK((grads.dk.to(at::kDouble) - ok.grad()).norm().item<double>() < noise);
  CHECK(relative_error(grads.dv, ov.grad()) < tolerance(type));
}

TEST_CASE("causal_attention does not look ahead, passes NaN on, and ignores the number of threads", "[nn]") {
  at::manual_seed(6);
  at::set_num_threads(1);
  const c10::InferenceMode inference;
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const Tensor q = random({1, 200, 4, 16}, type), dout = random({1, 200, 4, 16}, type);
  Tensor k = random({1, 200, 2, 16}, type), v = random({1, 200, 2, 16}, type);
  nn::AttentionStatistics stats;
  const Tensor out = nn::causal_attention(q, k, v, stats);
  const nn::AttentionGradients grads = nn::causal_attention_backward(dout, q, k, v, out, stats);

  if (kernels::cpu::has_attention()) {
    at::set_num_threads(2);
    nn::AttentionStatistics other;
    CHECK(same_bits(nn::causal_attention(q, k, v, other), out));
    const nn::AttentionGradients again = nn::causal_attention_backward(dout, q, k, v, out, other);
    CHECK(same_bits(again.dq, grads.dq));
    CHECK(same_bits(again.dk, grads.dk));
    CHECK(same_bits(again.dv, grads.dv));
    at::set_num_threads(1);
  }
  k.narrow(1, 150, 50).fill_(30);
  v.narrow(1, 150, 50).fill_(100);
  CHECK(same_bits(nn::causal_attention(q, k, v, stats).narrow(1, 0, 150), out.narrow(1, 0, 150)));
  k.select(1, 150).fill_(std::nan(""));
  const Tensor broken = nn::causal_attention(q, k, v, stats);
  CHECK(broken.narrow(1, 150, 50).isnan().all().item<bool>());
}

TEST_CASE("Attention: forward, backward_input, backward_weight", "[nn]") {
  at::set_num_threads(1);
  at::manual_seed(9);
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const auto index = GENERATE(0, 1, 2, 3);
  const nn::AttentionConfig config = kConfigs[index];
  const int64_t batch = 2, seq = 21;
  nn::ParameterGroup store;
  nn::Attention layer(store, "attn", config);
  store.materialise(at::kCPU, type);
  store.initialise(5);
  fill_vectors(store);
  const Tensor x = random({batch * seq, config.hidden}, type),
               dy = random({batch * seq, config.hidden}, type);
  const kernels::RopeTable rope = nn::make_rope_table(config.head_dim, 64, 10000, {}, {}, at::kCPU);
  const Tensor positions = at::stack({at::arange(seq, at::kInt), at::arange(seq, at::kInt) + 40});
  const Oracle oracle = plain_layer(store, config, x, positions, rope);
  oracle.y.backward(dy.to(at::kDouble));

  const c10::InferenceMode inference;
  nn::Attention::Saved saved;
  CHECK(relative_error(layer.forward(x, positions, rope, saved), oracle.y) < 2 * tolerance(type));
  nn::WeightGradQueue queue(Mode::immediate);
  CHECK(relative_error(layer.backward_input(saved, dy, rope, queue), oracle.x.grad()) < 2 * tolerance(type));
  CHECK_FALSE(saved.qkv.defined());
  CHECK_FALSE(saved.out.defined());
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
    layer.forward(x, positions, rope, saved);
    layer.backward_input(saved, dy, rope, deferred);
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

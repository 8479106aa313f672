// The attention layer, against LibTorch's autograd in float64 on an explicit softmax.
#include "core/nn/attention.h"

#include <ATen/Parallel.h>
#include <ATen/TensorIndexing.h>
#include <c10/core/InferenceMode.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/kernels/dry_run.h"
#include "core/nn/rope.h"
#include "test/core/attention/attention_oracle.h"
#include "test/core/kernels/compare.h"
#include "test/core/nn/gradients.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

using namespace pptrain;
using namespace pptrain::test;
using at::Tensor;
using Mode = nn::WeightGradQueue::Mode;

namespace {

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
  const auto norm = [&](const Tensor& heads, const std::string& name) {
    if (c.qk_norm == nn::QkNorm::none) return heads;
    const Tensor w = weight(name) + (c.qk_norm_kind == nn::NormKind::rms ? 0 : 1);
    const Tensor rows = c.qk_norm == nn::QkNorm::whole ? heads.flatten(1) : heads;
    return test::rms_norm(rows, w, c.norm_eps).view_as(heads);
  };
  q = norm(q, "attn.q_norm.weight");
  k = norm(k, "attn.k_norm.weight");
  const auto turn = [&](const Tensor& heads) {
    if (c.rope < 0) return heads;
    const kernels::RopeTable& table = tokens.ropes[static_cast<size_t>(c.rope)].table;
    const Tensor cos = table.cos.index({tokens.positions.to(at::kLong)}).to(at::kDouble);
    const Tensor sin = table.sin.index({tokens.positions.to(at::kLong)}).to(at::kDouble);
    const int64_t turned = 2 * cos.size(1);
    return test::cat(
        {test::rotate(heads.narrow(2, 0, turned), cos, sin), heads.narrow(2, turned, c.head_dim - turned)},
        2);
  };
  const ScoreSettings settings{.scale = c.scale,
                               .softcap = c.softcap,
                               .window = c.window,
                               .sinks = c.sinks ? weight("attn.sinks") : Tensor()};
  const Tensor out = masked_attention(turn(q), turn(k), v, tokens.segments, settings);
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
     .qk_norm = nn::QkNorm::head,
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
     .qk_norm = nn::QkNorm::head,
     .init_std = 0.2,
     .o_init_std = 0.2},
    {.hidden = 24,
     .heads = 4,
     .kv_heads = 2,
     .head_dim = 10,
     .qkv_bias = true,
     .qk_norm = nn::QkNorm::whole,
     .init_std = 0.2,
     .o_init_std = 0.2},
    {.hidden = 24,
     .heads = 4,
     .kv_heads = 2,
     .head_dim = 8,
     .qk_norm = nn::QkNorm::head,
     .qk_norm_kind = nn::NormKind::rms_plus_one,
     .rope = 1,
     .rotary_dim = 8,
     .init_std = 0.2,
     .o_init_std = 0.2},
    {.hidden = 24, .heads = 3, .kv_heads = 3, .head_dim = 10, .rope = 1, .rotary_dim = 4, .init_std = 0.2},
    {.hidden = 24, .heads = 3, .kv_heads = 1, .head_dim = 10, .rope = -1, .init_std = 0.2},
    {.hidden = 24,
     .heads = 4,
     .kv_heads = 2,
     .head_dim = 16,
     .scale = 0.3,
     .softcap = 2,
     .window = 9,
     .sinks = true,
     .init_std = 0.2,
     .o_init_std = 0.2},
    {.hidden = 24,
     .heads = 4,
     .kv_heads = 2,
     .head_dim = 10,
     .qk_norm = nn::QkNorm::head,
     .qk_norm_kind = nn::NormKind::rms_plus_one,
     .rope = 1,
     .rotary_dim = 4,
     .init_std = 0.2},
    {.hidden = 24,
     .heads = 4,
     .kv_heads = 2,
     .head_dim = 10,
     .qk_norm = nn::QkNorm::head,
     .rope = -1,
     .init_std = 0.2},
    // As in Gemma 2 and gpt-oss.
    {.hidden = 24,
     .heads = 4,
     .kv_heads = 2,
     .head_dim = 8,
     .scale = 0.5,
     .softcap = 2,
     .window = 6,
     .init_std = 0.2},
    {.hidden = 24,
     .heads = 4,
     .kv_heads = 2,
     .head_dim = 8,
     .qkv_bias = true,
     .window = 9,
     .sinks = true,
     .init_std = 0.2},
};

// The second table is one layer's own, with as many dims as it rotates.
std::vector<nn::Rotation> tables_for(const nn::AttentionConfig& config, at::Device device) {
  return {
      {nn::make_rope_table({.dim = config.head_dim}, 64, device)},
      {nn::make_rope_table({.dim = config.rotary_dim == 0 ? config.head_dim : config.rotary_dim, .theta = 50},
                           64, device)}};
}

void fill_vectors(nn::ParameterGroup& store) {
  for (nn::Slice* p : store.slices()) {
    if (p->master.dim() == 1) p->master.uniform_(0.5, 1.5);
  }
  store.refresh_compute();
}

}  // namespace

TEST_CASE("Attention: forward, backward_input, backward_weight", "[nn]") {
  at::set_num_threads(1);
  at::manual_seed(test::seed(9));
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const auto index = GENERATE(range(size_t{0}, std::size(kConfigs)));
  const nn::AttentionConfig config = kConfigs[index];
  const auto starts = GENERATE(std::vector<int32_t>{0, 21, 42}, std::vector<int32_t>{0, 5, 35, 36, 42});
  const nn::TokenInfo tokens{
      // The second half begins at its own position, as divided documents do.
      .positions = test::cat({at::arange(21, at::kInt), at::arange(21, at::kInt) + 40}),
      .segments = tokens::make_segments(starts, at::kCPU),
      .ropes = tables_for(config, at::kCPU)};
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
    // A vector's gradient is a sum over all tokens that cancels in part. The k bias's gradient is only
    // rounding, since a constant added to all keys does not change a softmax.
    const double rounded = (weight.dim() == 1 ? 0.3 : 0.1) * dy.to(at::kDouble).norm().item<double>();
    CHECK(norm_of(store.find(name)->grad.to(at::kDouble) - weight.grad()) <
          3 * tolerance(type) * (weight.grad().norm().item<double>() + rounded));
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

TEST_CASE("a dry run takes every setting of attention", "[nn]") {
  const c10::InferenceMode inference;
  for (const nn::AttentionConfig& config : kConfigs) {
    const kernels::DryRun run;
    nn::ParameterGroup store;
    nn::Attention layer(store, "attn", config);
    store.materialise(at::kMeta, at::kBFloat16);
    const auto options = at::TensorOptions().device(at::kMeta);
    const nn::TokenInfo tokens{.positions = at::empty({42}, options.dtype(at::kInt)),
                               .segments = tokens::make_segments({0, 21, 42}, at::kMeta),
                               .ropes = tables_for(config, at::kMeta)};
    const Tensor x = at::empty({42, config.hidden}, options.dtype(at::kBFloat16));
    nn::Attention::Saved saved;
    nn::WeightGradQueue queue(Mode::immediate);
    const Tensor y = layer.forward(x, tokens, saved);
    const Tensor dx = layer.backward_input(saved, at::empty_like(y), tokens, queue);
    CHECK(y.sizes() == x.sizes());
    CHECK(dx.sizes() == x.sizes());
    const int64_t weights = 2 * config.hidden * (config.heads + config.kv_heads) * config.head_dim;
    CHECK(run.cost().product_flops == static_cast<double>(6 * 42 * weights));
  }
}

TEST_CASE("Attention refuses heads that cannot be grouped", "[nn]") {
  nn::ParameterGroup store;
  CHECK_THROWS_AS(nn::Attention(store, "a", {.hidden = 8, .heads = 4, .kv_heads = 3, .head_dim = 2}), Error);
  CHECK_THROWS_AS(nn::Attention(store, "a", {.hidden = 8, .heads = 4, .kv_heads = 2, .head_dim = 3}), Error);
  const nn::AttentionConfig odd{.hidden = 8, .heads = 4, .kv_heads = 2, .head_dim = 4, .rotary_dim = 3};
  CHECK_THROWS_WITH(nn::Attention(store, "a", odd), contains_text("rotation of 3 dims"));
}

namespace {

// Takes the heads in two halves, as two ranks that exchange heads would, and keeps the tensors it made from
// its operands.
class Halves final : public attention::CoreAttention {
 public:
  Tensor forward(attention::AttentionCall call, attention::Saved& saved) override {
    call.q = call.q.clone();
    call.k = call.k.clone();
    call.v = call.v.clone();
    saved = {.call = call, .out = at::empty(call.q.sizes(), call.q.options())};
    std::vector<Tensor> logsumexp;
    for (int64_t half = 0; half < 2; ++half) {
      attention::Saved own;
      of(saved.out, half).copy_(attention::attend(half_of(call, half), own));
      logsumexp.push_back(own.logsumexp);
    }
    saved.logsumexp = test::cat(logsumexp);
    return saved.out.clone();
  }

  attention::Gradients backward(const Tensor& dout, attention::Saved saved) override {
    const attention::AttentionCall& call = saved.call;
    attention::Gradients grads{
        .dq = at::empty_like(call.q), .dk = at::empty_like(call.k), .dv = at::empty_like(call.v)};
    for (int64_t half = 0; half < 2; ++half) {
      const attention::Gradients own = attention::attend_backward(
          of(dout, half), {.call = half_of(call, half),
                           .out = of(saved.out, half),
                           .logsumexp = saved.logsumexp.chunk(2)[static_cast<size_t>(half)]});
      of(grads.dq, half).copy_(own.dq);
      of(grads.dk, half).copy_(own.dk);
      of(grads.dv, half).copy_(own.dv);
    }
    return grads;
  }

 private:
  static Tensor of(const Tensor& x, int64_t half) { return x.narrow(1, half * x.size(1) / 2, x.size(1) / 2); }
  static attention::AttentionCall half_of(attention::AttentionCall call, int64_t half) {
    call.q = of(call.q, half);
    call.k = of(call.k, half);
    call.v = of(call.v, half);
    return call;
  }
};

nn::TokenInfo some_tokens(at::Device device) {
  return {.positions = at::arange(20, at::TensorOptions().dtype(at::kInt).device(device)),
          .segments = tokens::make_segments({0, 8, 20}, device),
          .ropes = {{nn::make_rope_table({.dim = 8}, 20, device)}}};
}

struct LayerResult {
  Tensor y, dx, grads;
};

LayerResult run_layer(nn::AttentionConfig config, std::shared_ptr<attention::CoreAttention> core) {
  nn::ParameterGroup store;
  nn::Attention layer(store, "attn", config, std::move(core));
  store.materialise(at::kCPU, at::kFloat);
  store.initialise(5);
  store.refresh_compute();
  const nn::TokenInfo tokens = some_tokens(at::kCPU);
  at::manual_seed(test::seed(3));
  nn::Attention::Saved saved;
  nn::WeightGradQueue queue(nn::WeightGradQueue::Mode::immediate);
  const Tensor y = layer.forward(random({20, 24}, at::kFloat), tokens, saved);
  const Tensor dx = layer.backward_input(saved, random({20, 24}, at::kFloat), tokens, queue);
  return {.y = y, .dx = dx, .grads = all_gradients(store)};
}

}  // namespace

TEST_CASE("a layer works with another core attention, which keeps operands of its own", "[nn]") {
  const c10::InferenceMode inference;
  at::set_num_threads(1);
  using enum nn::QkNorm;
  const auto [qk_norm, rope] =
      GENERATE(std::pair{none, 0}, std::pair{head, 0}, std::pair{whole, 0}, std::pair{none, -1});
  const nn::AttentionConfig config{.hidden = 24,
                                   .heads = 4,
                                   .kv_heads = 2,
                                   .head_dim = 8,
                                   .qk_norm = qk_norm,
                                   .rope = rope,
                                   .init_std = 0.2};
  const LayerResult local = run_layer(config, attention::make_local_attention());
  const LayerResult halves = run_layer(config, std::make_shared<Halves>());
  CHECK(local.grads.norm().item<double>() > 0);
  CHECK(same_bits(halves.y, local.y));
  CHECK(same_bits(halves.dx, local.dx));
  CHECK(same_bits(halves.grads, local.grads));
}

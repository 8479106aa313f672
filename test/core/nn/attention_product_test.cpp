// The seam between an attention layer and its product.
#include "core/nn/attention_product.h"

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <memory>
#include <utility>

#include "core/kernels/cpu/attention.h"
#include "core/nn/attention.h"
#include "core/nn/rope.h"
#include "test/core/kernels/compare.h"
#include "test/core/nn/gradients.h"
#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::test;
using at::Tensor;

namespace {

// Takes the heads in two halves, as two ranks that exchange heads would, and keeps what it made of its
// operands.
class Halves final : public nn::AttentionProduct {
 public:
  Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v, const nn::TokenInfo& tokens,
                 Saved& saved) override {
    saved = {.q = q.clone(),
             .k = k.clone(),
             .v = v.clone(),
             .out = at::empty(q.sizes(), q.options()),
             .statistics = {}};
    for (int64_t half = 0; half < 2; ++half) {
      nn::AttentionStatistics statistics;
      of(saved.out, half)
          .copy_(nn::causal_attention(of(saved.q, half), of(saved.k, half), of(saved.v, half),
                                      tokens.segments, statistics));
      saved.statistics.calls.push_back(statistics.calls.at(0));
    }
    return saved.out.clone();
  }

  nn::AttentionGradients backward(const Tensor& dout, const nn::TokenInfo& tokens, Saved saved) override {
    nn::AttentionGradients grads{
        .dq = at::empty_like(saved.q), .dk = at::empty_like(saved.k), .dv = at::empty_like(saved.v)};
    for (int64_t half = 0; half < 2; ++half) {
      const auto own = nn::causal_attention_backward(
          of(dout, half), of(saved.q, half), of(saved.k, half), of(saved.v, half), tokens.segments,
          of(saved.out, half), {.calls = {saved.statistics.calls.at(static_cast<size_t>(half))}});
      of(grads.dq, half).copy_(own.dq);
      of(grads.dk, half).copy_(own.dk);
      of(grads.dv, half).copy_(own.dv);
    }
    return grads;
  }

 private:
  static Tensor of(const Tensor& x, int64_t half) { return x.narrow(1, half * x.size(1) / 2, x.size(1) / 2); }
};

nn::TokenInfo some_tokens(at::Device device) {
  return {.positions = at::arange(20, at::TensorOptions().dtype(at::kInt).device(device)),
          .segments = tokens::make_segments({0, 8, 20}, device),
          .rope = nn::make_rope_table(8, 20, 10000, {}, device)};
}

struct Result {
  Tensor y, dx, grads;
};

Result run(bool qk_norm, std::shared_ptr<nn::AttentionProduct> product) {
  nn::ParameterGroup store;
  nn::Attention layer(
      store, "attn",
      {.hidden = 24, .heads = 4, .kv_heads = 2, .head_dim = 8, .qk_norm = qk_norm, .init_std = 0.2},
      std::move(product));
  store.materialise(at::kCPU, at::kFloat);
  store.initialise(5);
  store.refresh_compute();
  const nn::TokenInfo tokens = some_tokens(at::kCPU);
  at::manual_seed(3);
  nn::Attention::Saved saved;
  nn::WeightGradQueue queue(nn::WeightGradQueue::Mode::immediate);
  const Tensor y = layer.forward(random({20, 24}, at::kFloat), tokens, saved);
  const Tensor dx = layer.backward_input(saved, random({20, 24}, at::kFloat), tokens, queue);
  return {.y = y, .dx = dx, .grads = all_gradients(store)};
}

}  // namespace

TEST_CASE("a layer works with another product, which keeps operands of its own", "[nn]") {
  const c10::InferenceMode inference;
  at::set_num_threads(1);
  const bool qk_norm = GENERATE(false, true);
  const Result local = run(qk_norm, nn::make_local_attention());
  const Result halves = run(qk_norm, std::make_shared<Halves>());
  CHECK(local.grads.norm().item<double>() > 0);
  CHECK(same_bits(halves.y, local.y));
  CHECK(same_bits(halves.dx, local.dx));
  CHECK(same_bits(halves.grads, local.grads));
}

TEST_CASE("on the meta device the local product gives shapes alone", "[nn]") {
  const c10::InferenceMode inference;
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const auto kind = at::TensorOptions().dtype(type).device(at::kMeta);
  const nn::TokenInfo tokens{
      .positions = {}, .segments = tokens::make_segments({0, 8, 20}, at::kMeta), .rope = {}};
  const Tensor q = at::empty({20, 4, 8}, kind), k = at::empty({20, 2, 8}, kind),
               v = at::empty({20, 2, 8}, kind);
  const auto product = nn::make_local_attention();
  nn::AttentionProduct::Saved saved;
  const Tensor out = product->forward(q, k, v, tokens, saved);
  CHECK(out.is_meta());
  CHECK(out.sizes() == q.sizes());
  CHECK(out.scalar_type() == type);
  REQUIRE(saved.statistics.calls.size() == 1);
  const Tensor logsumexp = saved.statistics.calls[0].logsumexp;
  CHECK(logsumexp.is_meta());
  CHECK(logsumexp.sizes() == at::IntArrayRef({4, 20}));
  CHECK(logsumexp.scalar_type() == at::kFloat);
  const auto grads = product->backward(out, tokens, std::move(saved));
  CHECK(grads.dq.sizes() == q.sizes());
  CHECK(grads.dk.sizes() == k.sizes());
  CHECK(grads.dv.sizes() == v.sizes());
  CHECK(grads.dv.is_meta());
}

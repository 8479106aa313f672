// Layers on the device under test against the CPU in float32; test/core/nn compares the CPU with autograd in
// float64.
#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/InferenceMode.h>

#include <array>
#include <vector>

#include "core/nn/attention.h"
#include "core/nn/feed_forward.h"
#include "core/nn/linear.h"
#include "core/nn/norm.h"
#include "core/nn/rope.h"
#include "core/nn/token_info.h"
#include "core/nn/vocabulary.h"
#include "core/nn/weight_grad_queue.h"
#include "test/gpu/model_support.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

using namespace pptrain;
using namespace pptrain::test;
using Mode = nn::WeightGradQueue::Mode;

namespace {

// Allocates the weights at the place, and fills them.
void prepare(nn::ParameterGroup& group, const Place& place) {
  group.materialise(place.device, place.type);
  fill_weights(group);
}

// The documents begin at `starts`. The second half of the tokens begins at its own position, as in divided
// documents.
nn::TokenInfo token_info(const Place& place, std::vector<int32_t> starts, int64_t head_dim) {
  const int64_t half = starts.back() / 2;
  Tensor positions = at::arange(starts.back(), at::kInt);
  positions.narrow(0, half, starts.back() - half).add_(40);
  return {.positions = positions.to(place.device),
          .segments = tokens::make_segments(std::move(starts), place.device),
          .ropes = {{nn::make_rope_table({.dim = head_dim}, 1024, place.device)}}};
}

Results attention_layer(const Place& place, const nn::AttentionConfig& config,
                        const std::vector<int32_t>& starts, Mode mode) {
  nn::ParameterGroup group;
  nn::Attention layer(group, "attn", config);
  prepare(group, place);
  const nn::TokenInfo tokens = token_info(place, starts, config.head_dim);
  nn::Attention::Saved saved;
  nn::WeightGradQueue queue(mode);
  Results results;
  results["y"] = layer.forward(place.values({starts.back(), config.hidden}, 1), tokens, saved);
  results["dx"] = layer.backward_input(saved, place.values({starts.back(), config.hidden}, 2), tokens, queue);
  queue.run();
  add_gradients(results, group);
  return results;
}

Results mlp(const Place& place, nn::Activation activation, bool bias, Mode mode) {
  nn::ParameterGroup group;
  nn::Mlp layer(group, "mlp", 64, 104, activation, /*gated=*/true, bias, 0.2, 0.2);
  prepare(group, place);
  const auto saved = layer.activate(place.values({130, 64}, 1), {});
  nn::WeightGradQueue queue(mode);
  Results results;
  results["y"] = layer.project(*saved);
  results["dx"] = layer.backward_input(*saved, place.values({130, 64}, 2), {}, queue);
  queue.run();
  add_gradients(results, group);
  return results;
}

nn::AttentionConfig heads(int64_t heads, int64_t kv_heads, int64_t head_dim, nn::QkNorm qk_norm) {
  return {.hidden = 72,
          .heads = heads,
          .kv_heads = kv_heads,
          .head_dim = head_dim,
          .qkv_bias = true,
          .o_bias = true,
          .qk_norm = qk_norm,
          .init_std = 0.1,
          .o_init_std = 0.1};
}

const std::array attention_configs{heads(4, 4, 32, nn::QkNorm::none), heads(6, 2, 64, nn::QkNorm::head),
                                   heads(8, 1, 128, nn::QkNorm::none), heads(8, 2, 64, nn::QkNorm::whole)};
// Equal documents, one long one, and unequal ones; some have one token.
const std::vector<std::vector<int32_t>> documents{{0, 64, 128}, {0, 300}, {0, 5, 35, 36, 140, 301}};

}  // namespace

TEST_CASE("Linear on the device", "[gpu]") {
  if (!device_is_there()) return;
  const c10::InferenceMode inference;
  for (const bool bias : {false, true}) {
    for (const auto& [rows, in, a, b] :
         std::vector<std::array<int64_t, 4>>{{130, 72, 40, 24}, {11, 19, 8, 5}, {256, 256, 512, 256}}) {
      CAPTURE(bias, rows, in);
      compare_places([&, rows = rows, in = in, a = a, b = b](const Place& place) {
        nn::ParameterGroup group;
        nn::Linear layer(group, in, {{"a", a}, {"b", b}}, bias, 0.1);
        prepare(group, place);
        const Tensor x = place.values({rows, in}, 1), dy = place.values({rows, a + b}, 2);
        Results results{{"y", layer.forward(x)}, {"dx", layer.backward_input(dy)}};
        layer.backward_weight(x, dy);
        layer.backward_weight(x, dy);  // gradients add up
        add_gradients(results, group);
        return results;
      });
    }
  }
}

TEST_CASE("Norm on the device, with and without an addition and a residual gradient", "[gpu]") {
  if (!device_is_there()) return;
  const c10::InferenceMode inference;
  const auto kind = GENERATE(nn::NormKind::rms, nn::NormKind::rms_plus_one, nn::NormKind::layer);
  for (const bool fused : {false, true}) {
    for (const auto& [rows, dim] : std::vector<std::array<int64_t, 2>>{{9, 37}, {130, 1024}}) {
      CAPTURE(kind, fused, rows, dim);
      compare_places([&, rows = rows, dim = dim](const Place& place) {
        nn::ParameterGroup group;
        nn::Norm layer(group, "norm", dim, kind, 1e-6);
        prepare(group, place);
        const auto values = [&](uint64_t seed) { return place.values({rows, dim}, seed); };
        nn::Norm::Saved saved;
        const Tensor y = layer.forward(values(1), fused ? values(2) : Tensor(), saved);
        Results results{{"sum", saved.x}, {"y", y}};
        results["dx"] = layer.backward(saved, values(3), fused ? values(4) : Tensor());
        add_gradients(results, group);
        return results;
      });
    }
  }
}

TEST_CASE("a gated Mlp on the device", "[gpu]") {
  if (!device_is_there()) return;
  const c10::InferenceMode inference;
  compare_places([&](const Place& place) { return mlp(place, nn::Activation::gelu, true, Mode::immediate); });
  for (const bool bias : {false, true}) {
    for (const Mode mode : {Mode::immediate, Mode::deferred}) {
      CAPTURE(bias);
      compare_places([&](const Place& place) { return mlp(place, nn::Activation::silu, bias, mode); });
    }
  }
}

TEST_CASE("Attention on the device: QK-norm, grouped heads, unequal documents", "[gpu]") {
  if (!device_is_there()) return;
  const c10::InferenceMode inference;
  for (const auto& config : attention_configs) {
    for (const auto& starts : documents) {
      CAPTURE(config.heads, config.kv_heads, config.head_dim, starts);
      compare_places(
          [&](const Place& place) { return attention_layer(place, config, starts, Mode::immediate); });
    }
  }
}

TEST_CASE("weight gradients taken later are those taken at once, bit for bit", "[gpu]") {
  if (!device_is_there()) return;
  const c10::InferenceMode inference;
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    const Place place{device_under_test(), type};
    const auto run = [&](Mode mode) {
      Results results = attention_layer(place, attention_configs[1], documents.back(), mode);
      results.merge(mlp(place, nn::Activation::silu, true, mode));
      return results;
    };
    const Results now = run(Mode::immediate);
    for (const auto& [name, later] : run(Mode::deferred)) {
      INFO(name);
      CHECK(later.equal(now.at(name)));
    }
  }
}

TEST_CASE("LinearCrossEntropy on the device, whatever the chunks", "[gpu]") {
  if (!device_is_there()) return;
  const c10::InferenceMode inference;
  for (const int64_t chunk_bytes : {int64_t{40000}, nn::LinearCrossEntropy::default_chunk_bytes(at::kCUDA)}) {
    CAPTURE(chunk_bytes);
    compare_places([&](const Place& place) {
      const int64_t rows = 150, hidden = 72, vocab = 1003;
      nn::ParameterGroup group;
      nn::Weight& weight = group.add({{.name = "head.weight", .shape = {vocab, hidden}, .init_std = 0.2}});
      prepare(group, place);
      nn::LinearCrossEntropy head(weight, vocab);
      head.set_chunk_bytes(chunk_bytes);
      Tensor labels = at::randint(vocab, {rows}, at::detail::createCPUGenerator(3), at::kLong);
      labels.narrow(0, 40, 7).fill_(-100);
      labels = labels.to(place.device);
      const Tensor h = place.values({rows, hidden}, 1);
      Tensor dh = at::empty_like(h);
      Results results{{"loss", head.losses(h, labels).sum(at::kDouble)}, {"logits", head.logits(h)}};
      results["loss with gradients"] = head.forward_backward(h, labels, dh);
      results["dh"] = dh;
      add_gradients(results, group);
      return results;
    });
  }
}

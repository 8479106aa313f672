// Linear layers with adapters and frozen weights, against LibTorch's autograd in float64.
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <cmath>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/data/tokens/segments.h"
#include "core/nn/adapter.h"
#include "core/nn/attention.h"
#include "core/nn/experts.h"
#include "core/nn/linear.h"
#include "core/nn/norm.h"
#include "core/nn/rope.h"
#include "core/nn/vocabulary.h"
#include "core/nn/weight_grad_queue.h"
#include "test/core/kernels/compare.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

using namespace pptrain;
using namespace pptrain::test;
using at::Tensor;
using Mode = nn::WeightGradQueue::Mode;

namespace {

constexpr int64_t rank = 3;
constexpr double scale = 1.7;

// Everything except adapters is frozen; weights with these names have an adapter.
nn::Learning adapters_of(const std::set<std::string>& names) {
  return {.freezes = [](const nn::ParameterSpec& spec) { return !nn::adapted_weight(spec.name); },
          .adapts = [names](const nn::ParameterSpec& spec) { return names.contains(spec.name); },
          .rank = rank,
          .scale = scale};
}

struct Adapted {
  explicit Adapted(const nn::Learning& learning) : store(learning) {
    at::set_num_threads(1);
    at::manual_seed(test::seed(5));
    group.put_adapters_in(store.add_group("adapters"));
  }

  // B starts with zeros, which would hide errors.
  void prepare(at::ScalarType type) {
    store.materialise(at::kCPU, type);
    store.initialise(3);
    for (nn::Slice* slice : store.slices()) {
      if (!slice->spec.frozen) slice->master.normal_(0, 0.5);
    }
    store.refresh_compute();
  }

  Tensor oracle(const std::string& name) { return leaf(store.find(name)->compute); }

  nn::ParameterStore store;
  nn::ParameterGroup& group = store.add_group("block");
};

// y for one part.
Tensor part(Adapted& adapted, const Tensor& x, const std::string& name, std::vector<Tensor>& leaves) {
  const Tensor y = x.mm(adapted.oracle(name + ".weight").t());
  if (adapted.store.find(name + ".lora_a.weight") == nullptr) return y;
  const Tensor a = leaves.emplace_back(adapted.oracle(name + ".lora_a.weight"));
  const Tensor b = leaves.emplace_back(adapted.oracle(name + ".lora_b.weight"));
  return y + x.mm(a.t()).mm(b.t()) * scale;
}

}  // namespace

TEST_CASE("Linear with adapters of all parts, of one, of a single part", "[nn]") {
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const auto targets = GENERATE(std::set<std::string>{"a.weight", "b.weight"},
                                std::set<std::string>{"b.weight"}, std::set<std::string>{"only.weight"});
  const bool single = targets.contains("only.weight");
  Adapted adapted(adapters_of(targets));
  const std::vector<nn::LinearPart> parts =
      single ? std::vector<nn::LinearPart>{{"only", 13}} : std::vector<nn::LinearPart>{{"a", 8}, {"b", 5}};
  nn::Linear layer(adapted.group, 19, parts, false, 0.3);
  adapted.prepare(type);
  CHECK(layer.learns());

  const Tensor x = random({23, 19}, type), dy = random({23, 13}, type);
  const Tensor ox = leaf(x);
  std::vector<Tensor> outputs, leaves;
  for (const nn::LinearPart& p : parts) outputs.push_back(part(adapted, ox, p.name, leaves));
  const Tensor oy = test::cat(outputs, 1);
  oy.backward(dy.to(at::kDouble));

  const c10::InferenceMode inference;
  CHECK(relative_error(layer.forward(x), oy) < tolerance(type));
  CHECK(relative_error(layer.backward_input(dy), ox.grad()) < tolerance(type));
  layer.backward_weight(x, dy);
  layer.backward_weight(x, dy);
  size_t at = 0;
  for (const nn::LinearPart& p : parts) {
    CHECK(!adapted.store.find(p.name + ".weight")->grad.defined());
    if (!targets.contains(p.name + ".weight")) continue;
    const double bound = type == at::kFloat ? 2e-6 : tolerance(type);
    CHECK(relative_error(adapted.store.find(p.name + ".lora_a.weight")->grad, leaves[at++].grad() * 2) <
          bound);
    CHECK(relative_error(adapted.store.find(p.name + ".lora_b.weight")->grad, leaves[at++].grad() * 2) <
          bound);
  }
  CHECK(at == leaves.size());
}

TEST_CASE("adapters start at zero output, A as normal as a uniform by fan-in", "[nn]") {
  Adapted adapted(adapters_of({"a.weight"}));
  nn::Linear layer(adapted.group, 300, {{"a", 7}}, false, 0.3);
  adapted.store.materialise(at::kCPU, at::kFloat);
  adapted.store.initialise(3);
  const nn::Slice& a = *adapted.store.find("a.lora_a.weight");
  CHECK(a.spec.shape == std::vector<int64_t>{rank, 300});
  CHECK(a.master.std().item<double>() == Approx(1 / std::sqrt(900.0)).epsilon(0.1));
  CHECK(adapted.store.find("a.lora_b.weight")->master.eq(0).all().item<bool>());
  const Tensor x = random({5, 300}, at::kFloat);
  const Tensor expected = x.mm(adapted.store.find("a.weight")->compute.t());
  CHECK(relative_error(layer.forward(x), expected) < 1e-6);
}

TEST_CASE("column and row layers take adapters' gradients at once and later with equal bits", "[nn]") {
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const auto alone = std::make_shared<const nn::TensorGroup>();
  std::vector<Tensor> gradients;
  for (const Mode mode : {Mode::immediate, Mode::deferred}) {
    Adapted adapted(adapters_of({"a.weight", "b.weight", "o.weight"}));
    nn::ColumnLinear column(adapted.group, 19, {{"a", 8}, {"b", 8}}, true, 0.3, alone);
    nn::RowLinear row(adapted.group, 16, {"o", 19}, true, 0.3, alone);
    adapted.prepare(type);
    const c10::InferenceMode inference;
    at::manual_seed(test::seed(9));
    const Tensor x = random({21, 19}, type), dy = random({21, 19}, type);
    nn::WeightGradQueue queue(mode);
    const Tensor inner = column.forward(x, 21)[0];
    row.forward(inner);
    const Tensor dx = column.backward(x, {row.backward(inner, dy, queue)}, queue);
    CHECK(queue.size() == (mode == Mode::deferred ? 2 : 0));
    queue.run();
    gradients.push_back(dx);
    for (const nn::Slice* slice : adapted.store.slices()) {
      CHECK(slice->grad.defined() != slice->spec.frozen);
      if (!slice->spec.frozen) gradients.push_back(slice->grad.clone());
    }
  }
  const size_t half = gradients.size() / 2;
  REQUIRE(half == 7);
  for (size_t i = 0; i < half; ++i) CHECK(same_bits(gradients[i], gradients[half + i]));
}

TEST_CASE("a frozen layer has the input gradients of one that learns, and queues nothing", "[nn]") {
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const auto kind = GENERATE(nn::NormKind::rms, nn::NormKind::rms_plus_one, nn::NormKind::layer);
  const auto alone = std::make_shared<const nn::TensorGroup>();
  std::vector<Tensor> results;
  for (const bool frozen : {false, true}) {
    Adapted adapted({.freezes = [frozen](const nn::ParameterSpec&) { return frozen; }});
    nn::ColumnLinear column(adapted.group, 19, {{"a", 8}, {"b", 8}}, true, 0.3, alone);
    nn::RowLinear row(adapted.group, 16, {"o", 19}, true, 0.3, alone);
    nn::Norm norm(adapted.group, "norm", 19, kind, 1e-6);
    adapted.store.materialise(at::kCPU, type);
    adapted.store.initialise(3);
    for (const nn::Buffer* buffer : adapted.store.buffers()) {
      CHECK(buffer->frozen == frozen);
      CHECK(buffer->master.defined() != frozen);
      CHECK(buffer->grad.defined() != frozen);
      CHECK(buffer->whole_compute.scalar_type() == buffer->type);
    }
    const c10::InferenceMode inference;
    at::manual_seed(test::seed(9));
    const Tensor x = random({21, 19}, type), dy = random({21, 19}, type);
    nn::WeightGradQueue queue(Mode::deferred);
    nn::Norm::Saved saved;
    const Tensor normed = norm.forward(x, {}, saved);
    const Tensor inner = column.forward(normed, 21)[0];
    results.push_back(row.forward(inner));
    const Tensor dx = column.backward(normed, {row.backward(inner, dy, queue)}, queue);
    results.push_back(norm.backward(saved, dx, {}));
    CHECK(queue.size() == (frozen ? 0 : 2));
  }
  CHECK(same_bits(results[0], results[2]));
  CHECK(same_bits(results[1], results[3]));
}

TEST_CASE("a frozen embedding takes no gradient", "[nn]") {
  Adapted adapted({.freezes = [](const nn::ParameterSpec&) { return true; }});
  nn::Embedding layer(adapted.group, "embed", {.vocab = 11, .dim = 6, .scale = 2, .positions = 8});
  adapted.store.materialise(at::kCPU, at::kFloat);
  CHECK(!layer.learns());
  const c10::InferenceMode inference;
  layer.backward_weight(at::tensor({1, 2}, at::kLong), at::arange(2, at::kInt), random({2, 6}, at::kFloat));
}

TEST_CASE("an embedding learns where its positions alone are frozen", "[nn]") {
  Adapted adapted(
      {.freezes = [](const nn::ParameterSpec& spec) { return spec.name == "embed_positions.weight"; }});
  nn::Embedding layer(adapted.group, "embed", {.vocab = 11, .dim = 6, .positions = 8});
  adapted.store.materialise(at::kCPU, at::kFloat);
  CHECK(layer.learns());
  const c10::InferenceMode inference;
  layer.backward_weight(at::tensor({1, 2}, at::kLong), at::arange(2, at::kInt), at::ones({2, 6}));
  CHECK(adapted.store.find("embed.weight")->grad.sum().item<float>() == 12);
  CHECK(!adapted.store.find("embed_positions.weight")->grad.defined());
}

TEST_CASE("frozen attention with sinks, norms and biases has the input gradients of one that learns",
          "[nn]") {
  const auto qk_norm = GENERATE(nn::QkNorm::none, nn::QkNorm::head, nn::QkNorm::whole);
  const nn::AttentionConfig config{.hidden = 24,
                                   .heads = 4,
                                   .kv_heads = 2,
                                   .head_dim = 8,
                                   .qkv_bias = true,
                                   .o_bias = true,
                                   .qk_norm = qk_norm,
                                   .sinks = true,
                                   .init_std = 0.3,
                                   .o_init_std = 0.3};
  const nn::TokenInfo tokens{.positions = at::arange(21, at::kInt),
                             .segments = tokens::make_segments({0, 21}, at::kCPU),
                             .ropes = {{nn::make_rope_table({.dim = 8}, 64, at::kCPU)}}};
  std::vector<Tensor> results;
  for (const bool frozen : {false, true}) {
    Adapted adapted({.freezes = [frozen](const nn::ParameterSpec&) { return frozen; }});
    nn::Attention layer(adapted.group, "attn", config);
    adapted.store.materialise(at::kCPU, at::kFloat);
    adapted.store.initialise(3);
    const c10::InferenceMode inference;
    at::manual_seed(test::seed(9));
    const Tensor x = random({21, 24}, at::kFloat), dy = random({21, 24}, at::kFloat);
    nn::WeightGradQueue queue(Mode::deferred);
    nn::Attention::Saved saved;
    layer.forward(x, tokens, saved);
    results.push_back(layer.backward_input(saved, dy, tokens, queue));
    CHECK((queue.size() == 0) == frozen);
  }
  CHECK(same_bits(results[0], results[1]));
}

TEST_CASE("frozen experts with biases and a shared gate have the input gradients of those that learn",
          "[nn]") {
  const nn::ExpertsConfig biased{.hidden = 24, .experts = 8, .chosen = 2, .intermediate = 12, .limit = 7};
  const nn::ExpertsConfig shared{.hidden = 24,
                                 .experts = 8,
                                 .chosen = 2,
                                 .intermediate = 12,
                                 .shared = 10,
                                 .gated_shared = true,
                                 .balance_bias = true};
  nn::ExpertsConfig config = GENERATE_REF(biased, shared);
  config.init_std = 0.3;
  const nn::TokenInfo tokens{};
  std::vector<Tensor> results;
  for (const bool frozen : {false, true}) {
    Adapted adapted({.freezes = [frozen](const nn::ParameterSpec&) { return frozen; }});
    std::unique_ptr<nn::FeedForward> layer;
    if (config.shared > 0) {
      layer = std::make_unique<nn::SharedExperts>(adapted.group, adapted.group, "mlp", config);
    } else {
      layer = std::make_unique<nn::Experts>(adapted.group, adapted.group, "mlp", config);
    }
    adapted.store.materialise(at::kCPU, at::kFloat);
    adapted.store.initialise(3);
    const c10::InferenceMode inference;
    at::manual_seed(test::seed(9));
    const Tensor x = random({21, 24}, at::kFloat), dy = random({21, 24}, at::kFloat);
    nn::WeightGradQueue queue(Mode::deferred);
    const auto saved = layer->activate(x, tokens);
    layer->project(*saved);
    results.push_back(layer->backward_input(*saved, dy, tokens, queue));
    CHECK((queue.size() == 0) == frozen);
  }
  CHECK(same_bits(results[0], results[1]));
}

TEST_CASE("parameters of one GEMM are frozen together, or not at all", "[nn]") {
  nn::ParameterGroup group(
      "block", false, {.freezes = [](const nn::ParameterSpec& spec) { return spec.name == "a.weight"; }});
  CHECK_THROWS_AS(nn::Linear(group, 19, {{"a", 8}, {"b", 8}}, false, 0.3), UsageError);
}

TEST_CASE("initial values of frozen bfloat16 weights are those that learn, rounded", "[nn]") {
  std::vector<Tensor> values;
  for (const bool frozen : {false, true}) {
    Adapted adapted({.freezes = [frozen](const nn::ParameterSpec&) { return frozen; }});
    nn::Linear layer(adapted.group, 33, {{"a", 8}, {"b", 5}}, false, 0.3);
    adapted.store.materialise(at::kCPU, at::kBFloat16);
    adapted.store.initialise(3);
    for (const nn::Slice* slice : adapted.store.slices()) values.push_back(slice->compute.clone());
  }
  CHECK(same_bits(values[0], values[2]));
  CHECK(same_bits(values[1], values[3]));
}

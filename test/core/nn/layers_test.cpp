// Linear, Norm, Mlp, Embedding and the weight gradient queue, against LibTorch's autograd in
// float64.
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "core/base/error.h"
#include "core/kernels/dry_run.h"
#include "core/nn/feed_forward.h"
#include "core/nn/linear.h"
#include "core/nn/norm.h"
#include "core/nn/vocabulary.h"
#include "core/nn/weight_grad_queue.h"
#include "test/core/kernels/compare.h"
#include "test/core/nn/gradients.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

using namespace pptrain;
using namespace pptrain::test;
using at::Tensor;
using Mode = nn::WeightGradQueue::Mode;

namespace {

struct Setup {
  Setup() {
    at::set_num_threads(1);
    at::manual_seed(test::seed(23));
  }
};

void prepare(nn::ParameterGroup& store, at::ScalarType type) {
  store.materialise(at::kCPU, type);
  store.initialise(3);
}

Tensor oracle_weight(nn::ParameterGroup& store, const std::string& name) {
  return leaf(store.find(name)->compute);
}

}  // namespace

TEST_CASE("Linear: forward, backward_input, backward_weight", "[nn]") {
  const Setup setup;
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const bool bias = GENERATE(false, true);
  nn::ParameterGroup store;
  nn::Linear layer(store, 19, {{"a", 8}, {"b", 5}}, bias, 0.3);
  prepare(store, type);
  if (bias) {
    store.find("a.bias")->master.normal_();
    store.find("b.bias")->master.normal_();
    store.refresh_compute();
    CHECK(store.find("a.bias")->spec.role == nn::Role::bias);
  }
  CHECK(store.find("a.weight")->spec.role == nn::Role::matrix);
  CHECK(layer.out_features() == 13);

  const Tensor x = random({11, 19}, type), dy = random({11, 13}, type);
  const Tensor ox = leaf(x), wa = oracle_weight(store, "a.weight"), wb = oracle_weight(store, "b.weight");
  Tensor ba, bb;
  Tensor oy = ox.mm(test::cat({wa, wb}).t());
  if (bias) {
    ba = oracle_weight(store, "a.bias");
    bb = oracle_weight(store, "b.bias");
    oy = oy + test::cat({ba, bb});
  }
  oy.backward(dy.to(at::kDouble));

  const c10::InferenceMode inference;
  CHECK(relative_error(layer.forward(x), oy) < tolerance(type));
  CHECK(relative_error(layer.backward_input(dy), ox.grad()) < tolerance(type));
  layer.backward_weight(x, dy);
  CHECK(relative_error(store.find("a.weight")->grad, wa.grad()) < 2e-6);
  CHECK(relative_error(store.find("b.weight")->grad, wb.grad()) < 2e-6);
  if (bias) {
    CHECK(relative_error(store.find("a.bias")->grad, ba.grad()) < 2e-6);
    CHECK(relative_error(store.find("b.bias")->grad, bb.grad()) < 2e-6);
  }
  layer.backward_weight(x, dy);
  CHECK(relative_error(store.find("b.weight")->grad, wb.grad() * 2) < 2e-6);
}

namespace {

// The weight acts as 1 + weight, or there are a weight and a bias.
Tensor plain_norm(nn::NormKind kind, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  if (kind == nn::NormKind::layer) return at::layer_norm(x, {x.size(1)}, weight, bias, 1e-6);
  return test::rms_norm(x, kind == nn::NormKind::rms ? weight : weight + 1, 1e-6);
}

}  // namespace

TEST_CASE("Norm: with and without an addition and a residual gradient", "[nn]") {
  const Setup setup;
  using enum nn::NormKind;
  const auto kind = GENERATE(rms, rms_plus_one, layer);
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const bool delta = GENERATE(false, true);
  const bool residual = GENERATE(false, true);
  nn::ParameterGroup store;
  nn::Norm norm(store, "norm", 37, kind, 1e-6);
  prepare(store, type);
  CHECK(store.slices().size() == (kind == layer ? 2U : 1U));
  CHECK(store.find("norm.weight")->master[0].item<float>() == (kind == rms_plus_one ? 0 : 1));
  for (nn::Slice* slice : store.slices()) {
    CHECK(slice->spec.role == nn::Role::norm);
    slice->master.uniform_(0.5, 1.5);
  }

  const Tensor x = random({9, 37}, type), d = random({9, 37}, type), dy = random({9, 37}, type),
               dr = random({9, 37}, type);
  const Tensor sum = delta ? (x + d) : x;  // rounded, as the layer's residual stream is
  const Tensor ox = leaf(sum), ow = leaf(store.find("norm.weight")->master);
  const Tensor ob = kind == layer ? leaf(store.find("norm.bias")->master) : Tensor();
  const Tensor oy = plain_norm(kind, ox, ow, ob);
  oy.backward(dy.to(at::kDouble));
  const Tensor odx = residual ? ox.grad() + dr.to(at::kDouble) : ox.grad();
  const Tensor dr_before = dr.clone();

  const c10::InferenceMode inference;
  nn::Norm::Saved saved;
  const Tensor y = norm.forward(x, delta ? d.clone() : Tensor(), saved);
  CHECK(same_bits(saved.x, sum));
  CHECK(relative_error(y, oy) < tolerance(type));
  const Tensor dx = norm.backward(saved, dy.clone(), residual ? dr : Tensor());
  CHECK(relative_error(dx, odx) < tolerance(type));
  CHECK(relative_error(store.find("norm.weight")->grad, ow.grad()) < 1e-5);
  if (kind == layer) {
    CHECK(store.find("norm.bias")->spec.name == "norm.bias");
    CHECK(relative_error(store.find("norm.bias")->grad, ob.grad()) < 1e-5);
  }
  CHECK(same_bits(dr, dr_before));
}

TEST_CASE("LayerNorm has the same bits on every number of threads", "[nn]") {
  const Setup setup;
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const Tensor x = random({1000, 70}, type), dy = random({1000, 70}, type);
  const auto results = [&](int threads) {
    const c10::InferenceMode inference;
    at::set_num_threads(threads);
    nn::ParameterGroup store;
    nn::Norm norm(store, "norm", 70, nn::NormKind::layer, 1e-5);
    prepare(store, type);
    nn::Norm::Saved saved;
    const Tensor y = norm.forward(x, {}, saved);
    const Tensor dx = norm.backward(saved, dy.clone(), {});
    return test::cat({y.to(at::kFloat).view({-1}), dx.to(at::kFloat).view({-1}), all_gradients(store)});
  };
  const Tensor alone = results(1);
  CHECK(same_bits(results(3), alone));
  at::set_num_threads(1);
}

TEST_CASE("a dry run of LayerNorm allocates and costs what its passes need", "[nn]") {
  const c10::InferenceMode inference;
  const kernels::DryRun run;
  nn::ParameterGroup store;
  nn::Norm norm(store, "norm", 40, nn::NormKind::layer, 1e-5);
  store.materialise(at::kMeta, at::kBFloat16);
  const auto options = at::TensorOptions().dtype(at::kBFloat16).device(at::kMeta);
  const Tensor x = at::empty({100, 40}, options), dy = at::empty({100, 40}, options);
  const int64_t before = run.current_bytes();
  nn::Norm::Saved saved;
  const Tensor y = norm.forward(x, {}, saved);
  CHECK(run.current_bytes() - before == 100 * 40 * 2 + 2 * 100 * 4);
  CHECK(run.cost().bytes == 2 * 100 * 40 * 2 + 2 * 40 * 4 + 2 * 100 * 4);
  const Tensor dx = norm.backward(saved, dy, {});
  CHECK(dx.sizes() == x.sizes());
  CHECK(dx.scalar_type() == at::kBFloat16);
}

namespace {

Tensor plain_activation(const Tensor& x, nn::Activation activation) {
  switch (activation) {
    case nn::Activation::silu:
      return x * at::sigmoid(x);
    case nn::Activation::gelu:
      return at::gelu(x);
    case nn::Activation::gelu_tanh:
      return at::gelu(x, "tanh");
    case nn::Activation::relu_squared:
      return at::relu(x).square();
  }
  throw Error("unknown activation");
}

// An MLP with hidden 24 and width 37.
std::unique_ptr<nn::FeedForward> make_mlp(nn::ParameterGroup& store, bool gated, nn::Activation activation,
                                          bool bias) {
  return std::make_unique<nn::Mlp>(store, "mlp", 24, 37, activation, gated, bias, 0.3, 0.2);
}

}  // namespace

TEST_CASE("Mlp, plain and gated: forward, backward_input, backward_weight", "[nn]") {
  const Setup setup;
  using enum nn::Activation;
  const bool gated = GENERATE(false, true);
  const auto activation = GENERATE(silu, gelu, gelu_tanh, relu_squared);
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const bool bias = GENERATE(false, true);
  nn::ParameterGroup store;
  const auto layer = make_mlp(store, gated, activation, bias);
  prepare(store, type);
  for (nn::Slice* slice : store.slices()) {
    if (slice->spec.role == nn::Role::bias) slice->master.normal_();
  }
  store.refresh_compute();
  const Tensor x = random({13, 24}, type), dy = random({13, 24}, type);
  const Tensor ox = leaf(x);
  std::map<std::string, Tensor> weights;
  const auto weight = [&](const std::string& name) {
    return weights[name] = oracle_weight(store, "mlp." + name);
  };
  const auto project = [&](const Tensor& from, const std::string& part) {
    const Tensor y = from.mm(weight(part + ".weight").t());
    return bias ? y + weight(part + ".bias") : y;
  };
  const Tensor up = project(ox, "up");
  const Tensor act =
      gated ? plain_activation(project(ox, "gate"), activation) * up : plain_activation(up, activation);
  const Tensor oy = project(act, "down");
  oy.backward(dy.to(at::kDouble));
  CHECK(store.slices().size() == weights.size());

  const c10::InferenceMode inference;
  const auto saved = layer->activate(x, {});
  CHECK(relative_error(layer->project(*saved), oy) < tolerance(type));
  nn::WeightGradQueue queue(Mode::deferred);
  CHECK(relative_error(layer->backward_input(*saved, dy, {}, queue), ox.grad()) < 2 * tolerance(type));
  for (const Tensor& freed : saved->tensors()) CHECK_FALSE(freed.defined());
  CHECK(queue.size() == 2);
  const int64_t inner = gated ? 2 * 37 : 37;
  CHECK(nn::storage_bytes(queue.operands()) == (13 * (37 + 24) + 13 * (24 + inner)) * x.element_size());
  CHECK(all_gradients(store).abs().sum().item<float>() == 0);
  queue.run();
  CHECK(queue.size() == 0);
  for (const auto& [name, oracle] : weights) {
    INFO(name);
    CHECK(relative_error(store.find("mlp." + name)->grad, oracle.grad()) < 2 * tolerance(type));
  }
}

TEST_CASE("Embedding with a scale and learned positions", "[nn]") {
  const Setup setup;
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const bool rounded = GENERATE(false, true);
  nn::ParameterGroup store;
  nn::Embedding layer(store, "embed",
                      {.vocab = 9,
                       .dim = 21,
                       .init_std = 1,
                       .scale = 59.866518188383,
                       .round_scale = rounded,
                       .positions = 4});
  prepare(store, type);
  const Tensor tokens = at::tensor({1, 8, 1, 0, 4, 1}, at::kLong);
  const Tensor positions = at::tensor({0, 1, 2, 3, 0, 1}, at::kInt);
  const Tensor dy = random({6, 21}, type);
  // As transformers multiplies: by a tensor of the compute type, or by a number.
  const double scale = rounded && type == at::kBFloat16 ? 59.75 : 59.866518188383;
  const Tensor table = oracle_weight(store, "embed.weight"),
               places = oracle_weight(store, "embed_positions.weight");
  const Tensor oy = table.index_select(0, tokens) * scale + places.index_select(0, positions.to(at::kLong));
  oy.backward(dy.to(at::kDouble));

  const c10::InferenceMode inference;
  const Tensor y = layer.forward(tokens, positions);
  CHECK(relative_error(y, oy) < tolerance(type));
  if (type == at::kBFloat16) {
    const Tensor scaled = layer.weight().compute.index_select(0, tokens).to(at::kFloat).mul(scale).to(type);
    CHECK(same_bits(y, scaled.add(store.find("embed_positions.weight")->compute.index_select(0, positions))));
  }
  layer.backward_weight(tokens, positions, dy);
  CHECK(relative_error(store.find("embed.weight")->grad, table.grad()) < tolerance(type));
  CHECK(relative_error(store.find("embed_positions.weight")->grad, places.grad()) < 1e-6);
}

TEST_CASE("Embedding: rows out, gradients in", "[nn]") {
  const Setup setup;
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  nn::ParameterGroup store;
  nn::Embedding layer(store, "embed", {.vocab = 9, .dim = 21, .init_std = 1});
  prepare(store, type);
  const Tensor tokens = at::tensor({1, 8, 1, 0, 4, 1}, at::kLong);
  const Tensor dy = random({6, 21}, type);
  const Tensor expected = at::zeros({9, 21}, at::kDouble).index_add(0, tokens, dy.to(at::kDouble));
  const c10::InferenceMode inference;
  CHECK(same_bits(layer.forward(tokens, {}), layer.weight().compute.index_select(0, tokens)));
  layer.backward_weight(tokens, {}, dy);
  CHECK(relative_error(layer.weight().grad, expected) < 1e-6);
}

TEST_CASE("weight gradients have the same bits deferred, and of a record that was dropped and restored",
          "[nn]") {
  const Setup setup;
  const bool gated = GENERATE(false, true);
  const auto activation = GENERATE(nn::Activation::silu, nn::Activation::gelu);
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const Tensor x = random({2, 31, 24}, type), dy = random({2, 31, 24}, type);
  using Keep = nn::FeedForward::Keep;
  const auto gradients = [&](Mode mode, std::optional<Keep> dropped) {
    const c10::InferenceMode inference;
    nn::ParameterGroup store;
    const auto layer = make_mlp(store, gated, activation, true);
    prepare(store, type);
    std::vector<nn::WeightGradQueue> queues(2, nn::WeightGradQueue(mode));
    for (int64_t microbatch = 0; microbatch < 2; ++microbatch) {
      const auto saved = layer->activate(x[microbatch], {});
      if (dropped) {
        layer->drop(*saved, *dropped);
        CHECK(saved->tensors()[1].defined() == (*dropped == Keep::products));  // inner
        layer->restore(x[microbatch], {}, *saved);
        CHECK_FALSE(saved->tensors()[2].defined());  // act
      }
      layer->backward_input(*saved, dy[microbatch], {}, queues[static_cast<size_t>(microbatch)]);
    }
    for (nn::WeightGradQueue& queue : queues) queue.run();
    return all_gradients(store);
  };
  const Tensor expected = gradients(Mode::immediate, std::nullopt);
  CHECK(same_bits(gradients(Mode::deferred, std::nullopt), expected));
  for (const Mode mode : {Mode::immediate, Mode::deferred}) {
    for (const Keep keep : {Keep::products, Keep::nothing}) CHECK(same_bits(gradients(mode, keep), expected));
  }
}

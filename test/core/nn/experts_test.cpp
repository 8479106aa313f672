// Router and experts against LibTorch's autograd in float64.
#include "core/nn/experts.h"

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/data/tokens/context_split.h"
#include "core/data/tokens/segments.h"
#include "core/nn/feed_forward.h"
#include "test/core/nn/expert_layer.h"
#include "test/core/nn/gradients.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

using namespace pptrain;
using namespace pptrain::test;
using at::Tensor;
using Keep = nn::FeedForward::Keep;
using Mode = nn::WeightGradQueue::Mode;

namespace {

struct ExpertSetup {
  ExpertSetup() {
    at::set_num_threads(1);
    at::manual_seed(test::seed(31));
  }
};

struct Passes {
  Tensor y, dx;
};

// `recompute`: what is kept of the forward pass; nothing: everything. `filling`: rows outside documents.
template <typename Layer>
Passes run(ExpertLayerOf<Layer>& model, const Tensor& x, const Tensor& dy, Mode mode,
           std::optional<Keep> recompute = std::nullopt, const Tensor& filling = {}) {
  const c10::InferenceMode inference;
  const int64_t padding = filling.defined() ? filling.sum().item<int64_t>() : 0;
  nn::TokenInfo tokens = tokens_of(x.size(0) - padding, 30);
  tokens.filling = filling;
  const auto saved = model.layer.activate(x, tokens);
  Passes result;
  result.y = model.layer.project(*saved);
  if (recompute) {
    model.layer.drop(*saved, *recompute);
    model.layer.restore(x, tokens, *saved);
  }
  nn::WeightGradQueue queue(mode);
  result.dx = model.layer.backward_input(*saved, dy, tokens, queue);
  for (const Tensor& tensor : saved->tensors()) CHECK_FALSE(tensor.defined());
  queue.run();
  return result;
}

// DeepSeek-V2, DeepSeek-V3, Qwen2-MoE, and each of their settings alone.
std::vector<nn::ExpertsConfig> routers() {
  nn::ExpertsConfig plain = small_experts(false);
  plain.balance_loss = plain.z_loss = 0;
  nn::ExpertsConfig v2 = plain, v3 = plain, qwen2 = plain;
  v2.groups = 4;
  v2.chosen_groups = 2;
  v2.scale = 2.5;
  v2.shared = 28;
  v3 = v2;
  v3.sigmoid = true;
  v3.normalise = v3.balance_bias = true;
  qwen2.shared = 12;
  qwen2.gated_shared = true;
  qwen2.balance_loss = 0.2;
  nn::ExpertsConfig sigmoid = qwen2;
  sigmoid.balance_loss = 0;
  sigmoid.sigmoid = true;
  return {v2, v3, qwen2, sigmoid};
}

}  // namespace

TEST_CASE("routers by sigmoids and groups, and shared experts", "[nn][experts]") {
  const ExpertSetup setup;
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  for (const nn::ExpertsConfig& config : routers()) {
    CAPTURE(type, config.groups, config.shared, config.normalise);
    ExpertLayerOf<nn::SharedExperts> model(config, type), other(config, type);
    for (auto* layer : {&model, &other}) {
      if (config.balance_bias) layer->find("router.bias")->master.copy_(at::arange(8) * 0.03);
    }
    const Tensor x = random({41, 24}, type), dy = random({41, 24}, type);
    const Passes passes = run(model, x, dy, Mode::immediate);
    ExpertOracle oracle(model, config);
    const Tensor ox = leaf(x);
    const Tensor oy = oracle.forward(ox);
    Tensor loss = (oy * dy.to(at::kDouble)).sum();
    if (config.balance_loss != 0) loss = loss + oracle.losses(30);
    loss.backward();
    CHECK(relative_error(passes.y, oy) < tolerance(type));
    CHECK(relative_error(passes.dx, ox.grad()) < tolerance(type) * 2);
    for (const auto& [name, weight] : oracle.weights) {
      CAPTURE(name);
      if (weight.grad().defined())
        CHECK(relative_error(model.find(name.substr(4))->grad, weight.grad()) < tolerance(type) * 3);
    }
    for (const Keep keep : {Keep::nothing, Keep::products}) {
      const Passes again = run(other, x, dy, Mode::deferred, keep);
      CHECK(same_bits(again.y, passes.y));
      CHECK(same_bits(again.dx, passes.dx));
    }
  }
}

TEST_CASE("experts with biases and clamped values, as in gpt-oss", "[nn][experts]") {
  const ExpertSetup setup;
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  nn::ExpertsConfig config = small_experts();
  config.limit = 0.7;
  config.balance_loss = config.z_loss = 0;
  ExpertLayer model(config, type), other(config, type);
  for (nn::ParameterGroup* group : {&model.group, &model.experts, &other.group, &other.experts}) {
    at::manual_seed(test::seed(5));
    for (nn::Slice* slice : group->slices()) {
      if (slice->spec.role == nn::Role::bias) slice->master.uniform_(-0.5, 0.5);
    }
    group->refresh_compute();
  }
  const Tensor x = random({41, 24}, type), dy = random({41, 24}, type);
  const Passes passes = run(model, x, dy, Mode::immediate);
  ExpertOracle oracle(model, config);
  const Tensor ox = leaf(x);
  const Tensor oy = oracle.forward(ox);
  (oy * dy.to(at::kDouble)).sum().backward();
  CHECK(relative_error(passes.y, oy) < tolerance(type));
  CHECK(relative_error(passes.dx, ox.grad()) < tolerance(type) * 3);
  const double slack = type == at::kFloat ? 4 : 20;  // some bf16 values round across the limit
  for (const auto& [name, weight] : oracle.weights) {
    CAPTURE(name);
    CHECK(relative_error(model.find(name.substr(4))->grad, weight.grad()) < tolerance(type) * slack);
  }
  for (const Keep keep : {Keep::nothing, Keep::products}) {
    const Passes again = run(other, x, dy, Mode::deferred, keep);
    CHECK(same_bits(again.y, passes.y));
    CHECK(same_bits(again.dx, passes.dx));
  }
  CHECK(same_bits(all_gradients(other.group), (all_gradients(model.group) * 2)));
}

TEST_CASE("routers refuse what they cannot do", "[nn][experts]") {
  nn::ExpertsConfig groups = small_experts(), few = small_experts(), losses = small_experts();
  groups.groups = 3;
  few.groups = 4;  // one group has 2 experts, of which 3 cannot be chosen
  losses.sigmoid = true;
  for (const nn::ExpertsConfig& config : {groups, few, losses}) CHECK_THROWS_AS(ExpertLayer(config), Error);
}

TEST_CASE("experts: output, input gradient, weight gradients and the router's losses", "[nn][experts]") {
  const ExpertSetup setup;
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const bool normalise = GENERATE(false, true);
  const bool biased = GENERATE(false, true);
  nn::ExpertsConfig config = small_experts(normalise);
  config.balance_bias = biased;
  ExpertLayer model(config, type);
  if (biased) model.find("router.bias")->master.uniform_(-0.2, 0.2);
  CHECK(model.find("router.weight")->compute.scalar_type() == at::kFloat);
  const Tensor x = random({41, 24}, type), dy = random({41, 24}, type);
  const Passes passes = run(model, x, dy, Mode::immediate);

  ExpertOracle oracle(model, config);
  const Tensor ox = leaf(x);
  const Tensor oy = oracle.forward(ox);
  ((oy * dy.to(at::kDouble)).sum() + oracle.losses(30)).backward();
  CHECK(relative_error(passes.y, oy) < tolerance(type));
  CHECK(relative_error(passes.dx, ox.grad()) < tolerance(type) * 2);
  const Tensor loads = at::one_hot(oracle.chosen, 8).sum(at::IntArrayRef{0, 1});
  for (const auto& [name, weight] : oracle.weights) {
    CAPTURE(name);
    const Tensor grad = model.find(name.substr(4))->grad;
    if (name == "mlp.router.bias") {
      CHECK(at::equal(grad, (8 * loads - loads.sum()).to(at::kFloat)));
    } else if (!weight.grad().defined()) {
      CHECK(grad.abs().max().item<float>() == 0);
    } else {
      CHECK(relative_error(grad, weight.grad()) < tolerance(type) * 3);
    }
  }
  CHECK(at::equal(model.layer.take_loads(), loads));
  CHECK_FALSE(model.layer.take_loads().defined());
}

TEST_CASE("filling counts in no loss of the router, and in no load", "[nn][experts]") {
  const ExpertSetup setup;
  nn::ExpertsConfig config = small_experts();
  config.balance_bias = true;
  ExpertLayer model(config), exact(config);
  const Tensor filling = at::rand({41}) < 0.4, different = random({41, 24}, at::kFloat);
  // As in a microbatch: padding is the same token again and again.
  const Tensor x = at::where(filling.unsqueeze(1), different[0], different);
  const Tensor own = filling.logical_not().nonzero().view({-1});
  const Tensor dy = random({41, 24}, at::kFloat) * filling.logical_not().unsqueeze(1);
  const Passes passes = run(model, x, dy, Mode::immediate, std::nullopt, filling);

  ExpertOracle oracle(model, config);
  const Tensor ox = leaf(x);
  const Tensor oy = oracle.forward(ox);
  ((oy * dy.to(at::kDouble)).sum() + oracle.losses(30, own)).backward();
  CHECK(relative_error(passes.dx, ox.grad()) < 5e-6);
  CHECK(passes.dx.masked_select(filling.unsqueeze(1)).abs().max().item<float>() == 0);
  CHECK(relative_error(model.find("router.weight")->grad, oracle.weights.at("mlp.router.weight").grad()) <
        5e-6);

  // The same without these rows.
  const Passes without = run(exact, x.index_select(0, own), dy.index_select(0, own), Mode::immediate);
  CHECK(relative_error(passes.dx.index_select(0, own), without.dx) < 2e-6);
  CHECK(at::equal(model.layer.take_loads(), exact.layer.take_loads()));
  CHECK(at::equal(model.find("router.bias")->grad, exact.find("router.bias")->grad));
  CHECK(relative_error(all_gradients(model.group), all_gradients(exact.group)) < 2e-6);
  CHECK(relative_error(all_gradients(model.experts), all_gradients(exact.experts)) < 2e-6);
}

TEST_CASE("the router's losses of lists in sequence slices are those of whole lists", "[nn][experts]") {
  const ExpertSetup setup;
  const auto recompute =
      GENERATE(std::optional<Keep>{}, std::optional(Keep::nothing), std::optional(Keep::products));
  const bool filled = GENERATE(false, true);
  ExpertLayer model(small_experts());
  ExpertOracle oracle(model, small_experts());
  struct List {
    Tensor x, dy, filling, ox;
    std::vector<nn::TokenInfo> slices;
    std::vector<std::unique_ptr<nn::FeedForward::Saved>> saved;
  };
  std::vector<List> lists(2);
  Tensor loss = at::zeros({}, at::kDouble);
  for (int number = 0; number < 2; ++number) {
    List& list = lists[static_cast<size_t>(number)];
    const int64_t length = number == 0 ? 41 : 27;
    list.x = random({length, 24}, at::kFloat);
    list.dy = random({length, 24}, at::kFloat);
    list.ox = leaf(list.x);
    list.filling = filled ? at::rand({length}) < 0.4 : at::zeros({length}, at::kBool);
    const Tensor own = list.filling.logical_not().nonzero().view({-1});
    const Tensor oy = oracle.forward(list.ox);
    loss = loss + (oy * list.dy.to(at::kDouble)).sum() + oracle.losses(30, own);
    const nn::TokenInfo whole = tokens_of(own.size(0), 30);
    tokens::ContextSplit split = tokens::split_by_cost(tokens::equal_segments(1, length, at::kCPU), 3,
                                                       /*attention_length=*/8, /*least=*/1, number);
    for (; split.part < split.parts(); ++split.part) {
      nn::TokenInfo& slice = list.slices.emplace_back(whole);
      slice.context = std::make_shared<tokens::ContextSplit>(split);
      if (filled) slice.filling = list.filling.slice(0, split.own()[0].begin, split.own()[0].end);
    }
  }
  loss.backward();

  const c10::InferenceMode inference;
  const auto rows_of = [](const Tensor& rows, const nn::TokenInfo& slice) {
    return rows.slice(0, slice.context->own()[0].begin, slice.context->own()[0].end).clone();
  };
  for (List& list : lists) {
    for (const nn::TokenInfo& slice : list.slices) {
      list.saved.push_back(model.layer.activate(rows_of(list.x, slice), slice));
      if (recompute) model.layer.drop(*list.saved.back(), *recompute);
    }
  }
  for (List& list : lists) {
    Tensor dx = at::empty_like(list.x);
    for (size_t i = list.slices.size(); i-- > 0;) {
      const nn::TokenInfo& slice = list.slices[i];
      if (recompute) model.layer.restore(rows_of(list.x, slice), slice, *list.saved[i]);
      nn::WeightGradQueue queue(Mode::immediate);
      const Tensor part = model.layer.backward_input(*list.saved[i], rows_of(list.dy, slice), slice, queue);
      dx.slice(0, slice.context->own()[0].begin, slice.context->own()[0].end).copy_(part);
    }
    CHECK(relative_error(dx, list.ox.grad()) < 5e-6);
  }
  for (const auto& [name, weight] : oracle.weights) {
    CAPTURE(name);
    CHECK(relative_error(model.find(name.substr(4))->grad, weight.grad()) < 1e-5);
  }
}

TEST_CASE("deferred weight gradients and recomputation give the same bits", "[nn][experts]") {
  const ExpertSetup setup;
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const Tensor x = random({41, 24}, type), dy = random({41, 24}, type);
  ExpertLayer plain(small_experts(), type);
  const Passes expected = run(plain, x, dy, Mode::immediate);
  for (const auto& [mode, recompute] : {std::pair<Mode, std::optional<Keep>>{Mode::deferred, std::nullopt},
                                        {Mode::immediate, Keep::nothing},
                                        {Mode::deferred, Keep::nothing},
                                        {Mode::immediate, Keep::products},
                                        {Mode::deferred, Keep::products}}) {
    ExpertLayer other(small_experts(), type);
    const Passes actual = run(other, x, dy, mode, recompute);
    CHECK(same_bits(actual.y, expected.y));
    CHECK(same_bits(actual.dx, expected.dx));
    CHECK(same_bits(all_gradients(other.group), all_gradients(plain.group)));
    CHECK(same_bits(all_gradients(other.experts), all_gradients(plain.experts)));
  }
}

TEST_CASE("a recomputed layer follows the routing of its forward pass", "[nn][experts]") {
  const ExpertSetup setup;
  const c10::InferenceMode inference;
  ExpertLayer model(small_experts());
  const Tensor x = random({12, 24}, at::kFloat);
  const auto saved = model.layer.activate(x, tokens_of(12, 12));
  const std::vector<Tensor> before = saved->tensors();
  const int64_t whole = nn::storage_bytes(before);
  const int64_t act = 12 * small_experts().chosen * small_experts().intermediate * x.element_size();
  model.layer.drop(*saved, Keep::products);
  CHECK(nn::storage_bytes(saved->tensors()) == whole - act - nn::storage_bytes(std::vector<Tensor>{x}));
  model.layer.drop(*saved, Keep::nothing);
  CHECK(nn::storage_bytes(saved->tensors()) < 12 * 24 * 4 * 2);
  model.find("router.weight")->master.neg_();  // choosing again would give another choice
  model.layer.restore(x, tokens_of(12, 12), *saved);
  const std::vector<Tensor> after = saved->tensors();
  CHECK(nn::storage_bytes(after) == whole - act);
  for (size_t i = 0; i < before.size(); ++i) CHECK((!after[i].defined() || same_bits(after[i], before[i])));
}

TEST_CASE("all tokens to one expert, and experts without tokens", "[nn][experts]") {
  const ExpertSetup setup;
  nn::ExpertsConfig config = small_experts();
  config.balance_bias = true;
  config.chosen = 1;
  ExpertLayer model(config);
  model.find("router.bias")->master[5] = 10;
  const Tensor x = random({17, 24}, at::kFloat), dy = random({17, 24}, at::kFloat);
  const Passes passes = run(model, x, dy, Mode::immediate);
  ExpertOracle oracle(model, config);
  const Tensor ox = leaf(x);
  const Tensor oy = oracle.forward(ox);
  ((oy * dy.to(at::kDouble)).sum() + oracle.losses(30)).backward();
  CHECK(relative_error(passes.y, oy) < 2e-6);
  CHECK(relative_error(passes.dx, ox.grad()) < 5e-6);
  CHECK(model.layer.take_loads()[5].item<int64_t>() == 17);
  CHECK(model.find("experts.4.up.weight")->grad.abs().max().item<float>() == 0);
  CHECK(relative_error(model.find("experts.5.up.weight")->grad,
                       oracle.weights.at("mlp.experts.5.up.weight").grad()) < 5e-6);
}

TEST_CASE("the router's losses need to know the global microbatch", "[nn][experts]") {
  const ExpertSetup setup;
  const c10::InferenceMode inference;
  ExpertLayer model(small_experts());
  const Tensor x = random({3, 24}, at::kFloat);
  const auto saved = model.layer.activate(x, {});
  nn::WeightGradQueue queue(Mode::immediate);
  CHECK_THROWS_AS(model.layer.backward_input(*saved, x, {}, queue), Error);
}

// A model in one stage and in several stages must give the same bits, with any split of its backward.
#include "models/transformer_stage.h"

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "app/forecast/footprint.h"
#include "core/base/error.h"
#include "test/core/kernels/compare.h"
#include "test/core/nn/late_side_stream.h"
#include "test/models/small_model.h"
#include "test/models/stage_step.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

using namespace pptrain;
using namespace pptrain::test;
using at::Tensor;
using config::Recompute;

namespace {

const std::vector<Backward> every_way = {Backward::at_once, Backward::beside, Backward::split};

std::vector<data::Microbatch> stage_microbatches(const models::ModelConfig& model) {
  std::vector<data::Microbatch> result;
  const std::vector<std::vector<int64_t>> lengths = {{9, 9}, {16}, {5, 1, 8, 3}};
  for (size_t i = 0; i < lengths.size(); ++i) {
    result.push_back(random_documents(model, lengths[i], static_cast<int>(i),
                                      lengths[i].size() > 1 ? std::optional<size_t>(1) : std::nullopt));
  }
  return result;
}

}  // namespace

TEST_CASE("splitting a model over stages and its backward into I and W changes no bit") {
  const c10::InferenceMode inference;
  at::set_num_threads(1);
  const std::string arch = GENERATE(as<std::string>{}, "llama", "qwen3", "qwen3_moe");
  const bool tied = GENERATE(false, true);
  const at::ScalarType dtype = GENERATE(at::kFloat, at::kBFloat16);
  const auto model = small_model(arch, tied);
  const auto batches = stage_microbatches(model);
  Stages whole = build_stages(model, {4}, dtype);
  const StageStep expected = run_step(whole, batches, Backward::at_once);
  for (const auto& [name, grad] : expected.grads) {
    INFO(name);
    if (name.find(".experts.") == std::string::npos)  // one may have got no token
      CHECK(grad.norm().item<double>() > 0);
  }
  const std::vector<std::vector<int64_t>> splits = {{4}, {2, 2}, {3, 1}, {1, 2, 1}, {1, 1, 1, 1}};
  for (const auto& split : splits) {
    for (const auto backward : every_way) {
      Stages stages = build_stages(model, split, dtype);
      const StageStep actual = run_step(stages, batches, backward);
      INFO(arch << " tied " << tied << " stages " << split.size() << " backward "
                << static_cast<int>(backward));
      CHECK(actual.loss == expected.loss);
      REQUIRE(actual.grads.size() == expected.grads.size());
      for (const auto& [name, grad] : expected.grads) {
        INFO(name);
        CHECK(same_bits(actual.grads.at(name), grad));
      }
    }
  }
}

TEST_CASE("adapters and frozen groups take the same bits whatever the stages and the backward") {
  const c10::InferenceMode inference;
  at::set_num_threads(1);
  const at::ScalarType dtype = GENERATE(at::kFloat, at::kBFloat16);
  const auto recompute = GENERATE(Recompute::none, Recompute::selective, Recompute::full);
  auto model = small_model("qwen3_moe", true);
  if (GENERATE(false, true)) {
    model.lora = {.rank = 3, .alpha = 5};
  } else {
    model.groups = {{.match = "layers.*.mlp.*", .frozen = true}, {.match = "embedding", .frozen = true}};
  }
  const auto batches = stage_microbatches(model);
  Stages whole = build_stages(model, {4}, dtype);
  const StageStep expected = run_step(whole, batches, Backward::at_once);
  // Four adapted projections in three sparse layers, seven in the dense one.
  if (model.lora.rank > 0) CHECK(expected.grads.size() == 2 * (3 * 4 + 7));
  for (const auto& [name, grad] : expected.grads) {
    INFO(name);
    CHECK(grad.norm().item<double>() > 0);
  }
  for (const auto& split : std::vector<std::vector<int64_t>>{{4}, {1, 2, 1}}) {
    for (const auto backward : every_way) {
      Stages stages = build_stages(model, split, dtype, 7, recompute);
      const StageStep actual = run_step(stages, batches, backward);
      CHECK(actual.loss == expected.loss);
      REQUIRE(actual.grads.size() == expected.grads.size());
      for (const auto& [name, grad] : expected.grads) {
        INFO(name);
        CHECK(same_bits(actual.grads.at(name), grad));
      }
    }
  }
}

TEST_CASE("what is frozen changes no gradient of what learns") {
  const c10::InferenceMode inference;
  at::set_num_threads(1);
  const std::string arch = GENERATE(values<std::string>({"qwen3", "qwen3_moe"}), from_range(families));
  INFO(arch);
  auto model = small_model(arch, true);
  const auto batches = stage_microbatches(model);
  Stages free = build_stages(model, {4}, at::kFloat);
  const StageStep all = run_step(free, batches, Backward::split);
  model.groups = {{.match = "*norm*", .frozen = true},
                  {.match = "embedding", .frozen = true},
                  {.match = "layers.1.*", .frozen = true}};
  Stages stages = build_stages(model, {4}, at::kFloat);
  const StageStep some = run_step(stages, batches, Backward::split);
  CHECK(some.loss == all.loss);
  CHECK(some.grads.size() < all.grads.size());
  CHECK(!some.grads.contains("layers.1.attn.o.weight"));
  CHECK(!some.grads.contains("head.weight"));
  REQUIRE(some.grads.contains("layers.0.attn.o.weight"));
  for (const auto& [name, grad] : some.grads) {
    INFO(name);
    CHECK(same_bits(grad, all.grads.at(name)));
  }
}

TEST_CASE("adapters of a family learn, with equal bits whatever the stages and the backward") {
  const c10::InferenceMode inference;
  at::set_num_threads(1);
  auto model = small_model(GENERATE(from_range(families)), true);
  INFO(model.arch);
  model.lora = {.rank = 3, .alpha = 5};
  const auto batches = stage_microbatches(model);
  Stages whole = build_stages(model, {4}, at::kFloat);
  const StageStep expected = run_step(whole, batches, Backward::at_once);
  CHECK(expected.grads.size() >= 4 * 4 * 2);
  Stages stages = build_stages(model, {1, 2, 1}, at::kFloat, 7, Recompute::full);
  const StageStep actual = run_step(stages, batches, Backward::split);
  CHECK(actual.loss == expected.loss);
  REQUIRE(actual.grads.size() == expected.grads.size());
  for (const auto& [name, grad] : expected.grads) {
    INFO(name);
    CHECK(grad.norm().item<double>() > 0);
    CHECK(same_bits(actual.grads.at(name), grad));
  }
}

TEST_CASE("a family's stages and recomputed activations change no bit") {
  const c10::InferenceMode inference;
  at::set_num_threads(1);
  const std::string arch = GENERATE(from_range(families));
  const auto [dtype, tied] = GENERATE(std::pair{at::kFloat, false}, std::pair{at::kBFloat16, true});
  const auto model = small_model(arch, tied);
  const auto batches = stage_microbatches(model);
  Stages whole = build_stages(model, {4}, dtype);
  const StageStep expected = run_step(whole, batches, Backward::at_once);
  for (const auto& [name, grad] : expected.grads) {
    INFO(arch << ' ' << name);
    if (name.find(".experts.") == std::string::npos)  // one may have got no token
      CHECK(grad.norm().item<double>() > 0);
  }
  for (const Recompute recompute : config::all_recomputes) {
    for (const auto backward : every_way) {
      Stages stages = build_stages(model, {2, 2}, dtype, 7, recompute);
      const StageStep actual = run_step(stages, batches, backward);
      INFO(arch << " recompute " << to_string(recompute) << " backward " << static_cast<int>(backward));
      CHECK(actual.loss == expected.loss);
      for (const auto& [name, grad] : expected.grads) {
        INFO(name);
        CHECK(same_bits(actual.grads.at(name), grad));
      }
    }
  }
}

TEST_CASE("weight gradients beside are joined a block late, and not before they are released") {
  const c10::InferenceMode inference;
  at::set_num_threads(1);
  const auto model = small_model("qwen3_moe", false);
  const auto batches = stage_microbatches(model);

  // Records the uses of each group, and the number of gradients in flight at its release.
  struct Access final : nn::WeightAccess {
    explicit Access(LateSideStream& s) : side(s) {}
    void acquire(size_t group, nn::Use use) override { open.emplace(group, use); }
    void release(size_t group, nn::Use use) override {
      wrong += open.erase({group, use}) != 1;
      if (use == nn::Use::backward_weight) waiting.push_back(side.waiting());
    }
    LateSideStream& side;
    std::set<std::pair<size_t, nn::Use>> open;
    int wrong = 0;
    std::vector<size_t> waiting;
  };
  LateSideStream side;
  Access access(side);
  Stages stages = build_stages(model, {4}, at::kFloat);
  stages[0]->use_weights(access);
  stages[0]->overlap_weight_gradients(side);
  stages[0]->forward(0, batches[0], {});
  stages[0]->backward(0, {});
  CHECK(access.wrong == 0);
  CHECK(access.open.empty());
  // A sparse block (two groups) pushes 5 gradients, a dense one 4. Blocks 3 to 1 are released while the next
  // block's gradients are in flight; then block 0 and the embedding.
  CHECK(access.waiting == std::vector<size_t>{5, 5, 4, 4, 5, 0, 0, 0});
}

TEST_CASE("packed documents give the sum of what each gives alone") {
  const c10::InferenceMode inference;
  at::set_num_threads(1);
  const std::string arch = GENERATE(as<std::string>{}, "llama", "qwen3");
  const auto model = small_model(arch, true);
  const data::Microbatch packed = random_documents(model, {5, 1, 16, 9}, 4, 3);
  std::vector<data::Microbatch> alone;
  for (int64_t i = 0; i < packed.segments.documents(); ++i) {
    const auto own = [&](const Tensor& x) {
      return x.narrow(0, packed.segments.first(i), packed.segments.length(i));
    };
    alone.push_back({.tokens = own(packed.tokens),
                     .labels = own(packed.labels),
                     .positions = own(packed.positions),
                     .segments = tokens::equal_segments(1, packed.segments.length(i), at::kCPU),
                     .targets = packed.segments.length(i) - 1});
  }
  Stages together = build_stages(model, {2, 2}, at::kFloat);
  Stages each = build_stages(model, {2, 2}, at::kFloat);
  const StageStep actual = run_step(together, {packed}, Backward::at_once);
  const StageStep expected = run_step(each, alone, Backward::at_once);
  CHECK(relative_error(actual.loss, expected.loss) <= 1e-6);
  for (const auto& [name, grad] : expected.grads) {
    INFO(name);
    // A softmax ignores what all keys share: the gradient of k's bias is only rounding.
    if (!name.ends_with(".k.bias")) CHECK(relative_error(actual.grads.at(name), grad) < gradient_tolerance);
  }
}

TEST_CASE("a stage says what its boundary tensors are") {
  const c10::InferenceMode inference;
  at::set_num_threads(1);
  const at::ScalarType dtype = GENERATE(at::kFloat, at::kBFloat16);
  const auto model = small_model("qwen3", false);
  Stages stages = build_stages(model, {2, 2}, dtype);
  for (const data::Microbatch& data : stage_microbatches(model)) {
    const Tensor output = stages[0]->forward(0, data, {});
    for (const auto& stage : stages) {
      const Tensor boundary = stage->empty_boundary(data);
      CHECK(boundary.sizes() == output.sizes());
      CHECK(boundary.scalar_type() == output.scalar_type());
      CHECK(boundary.is_contiguous());
    }
    stages[0]->discard();
  }
}

TEST_CASE("recomputing activations changes no bit") {
  const c10::InferenceMode inference;
  at::set_num_threads(1);
  const std::string arch = GENERATE(as<std::string>{}, "llama", "qwen3", "qwen3_moe");
  const at::ScalarType dtype = GENERATE(at::kFloat, at::kBFloat16);
  const auto model = small_model(arch, false);
  const auto batches = stage_microbatches(model);
  Stages whole = build_stages(model, {4}, dtype);
  const StageStep expected = run_step(whole, batches, Backward::at_once);
  for (const auto recompute : {Recompute::cheap, Recompute::selective, Recompute::full}) {
    for (const std::vector<int64_t>& split : {std::vector<int64_t>{4}, {3, 1}, {1, 2, 1}}) {
      for (const auto backward : every_way) {
        Stages stages = build_stages(model, split, dtype, 7, recompute);
        const StageStep actual = run_step(stages, batches, backward);
        CHECK(actual.loss == expected.loss);
        REQUIRE(actual.grads.size() == expected.grads.size());
        for (const auto& [name, grad] : expected.grads) {
          INFO(name);
          CHECK(same_bits(actual.grads.at(name), grad));
        }
      }
    }
  }
}

TEST_CASE("forward alone gives the loss of the training forward, and keeps nothing") {
  const c10::InferenceMode inference;
  at::set_num_threads(1);
  const at::ScalarType dtype = GENERATE(at::kFloat, at::kBFloat16);
  const auto model = small_model("qwen3", false);
  const auto batches = stage_microbatches(model);
  Stages stages = build_stages(model, {2, 2}, dtype);
  Tensor x = stages[0]->forward(0, batches[0], {});
  stages[1]->forward(0, batches[0], x);
  const auto trained = stages[1]->take_loss();
  for (auto& stage : stages) stage->discard();
  for (auto& stage : stages) CHECK(stage->saved_bytes() == 0);
  const Tensor boundary = stages[0]->forward_only(batches[0], {});
  stages[1]->forward_only(batches[0], boundary);
  const auto evaluated = stages[1]->take_loss();
  CHECK(evaluated == trained);
  for (auto& stage : stages) CHECK(stage->saved_bytes() == 0);
  for (const nn::Slice* p : stages[0]->parameters().slices())
    CHECK(p->grad.count_nonzero().item<int64_t>() == 0);
  CHECK(stages[1]->take_loss() == 0);
  // Logits of chosen rows equal these rows of all logits; their cross entropy is the loss.
  const Tensor logits = stages[1]->logits(batches[0], boundary, {});
  const Tensor rows = at::tensor({3, 0}, at::kLong);
  CHECK(relative_error(stages[1]->logits(batches[0], boundary, rows), logits.index_select(0, rows)) <
        tolerance(dtype));
  const Tensor loss = at::nll_loss(at::log_softmax(logits.to(at::kDouble), -1), batches[0].labels, {},
                                   at::Reduction::Sum, data::ignore_label);
  CHECK(relative_error(trained, loss.item<double>()) <= (dtype == at::kFloat ? 1e-6 : 1e-2));
}

TEST_CASE("the copy of a tied embedding starts equal, whichever stage builds it") {
  const c10::InferenceMode inference;
  const auto model = small_model("llama", true);
  Stages one = build_stages(model, {4}, at::kFloat);
  Stages two = build_stages(model, {3, 1}, at::kFloat);
  REQUIRE(one[0]->embedding_weight() != nullptr);
  CHECK(two[0]->head_weight() == nullptr);
  CHECK(two[1]->embedding_weight() == nullptr);
  for (const Tensor& copy : {one[0]->head_weight()->compute, two[1]->head_weight()->compute}) {
    CHECK(same_bits(copy, one[0]->embedding_weight()->compute));
  }
  CHECK(one[0]->head_weight()->grad.data_ptr() != one[0]->embedding_weight()->grad.data_ptr());
  Stages untied = build_stages(small_model("llama", false), {4}, at::kFloat);
  CHECK(!same_bits(untied[0]->head_weight()->compute, untied[0]->embedding_weight()->compute));
}

TEST_CASE("parameters are named globally, and vectors are norms or biases") {
  models::TransformerStage stage(small_model("qwen3", false),
                                 {.index = 1, .first_layer = 3, .end_layer = 4, .head = true});
  std::vector<std::string> names;
  for (const nn::ParameterSpec* spec : stage.parameters().specs()) {
    names.push_back(spec->name);
    CHECK((spec->role == nn::Role::norm || spec->role == nn::Role::bias) == (spec->shape.size() == 1));
  }
  CHECK(stage.parameters().slices().empty());  // nothing has memory yet
  std::sort(names.begin(), names.end());
  CHECK(names == std::vector<std::string>{
                     "head.weight", "layers.3.attn.k.bias", "layers.3.attn.k.weight",
                     "layers.3.attn.k_norm.weight", "layers.3.attn.o.bias", "layers.3.attn.o.weight",
                     "layers.3.attn.q.bias", "layers.3.attn.q.weight", "layers.3.attn.q_norm.weight",
                     "layers.3.attn.v.bias", "layers.3.attn.v.weight", "layers.3.attn_norm.weight",
                     "layers.3.mlp.down.weight", "layers.3.mlp.gate.weight", "layers.3.mlp.up.weight",
                     "layers.3.mlp_norm.weight", "norm.weight"});
}

TEST_CASE("the bytes that a record holds are as predicted") {
  const c10::InferenceMode inference;
  at::set_num_threads(1);
  const std::string arch = GENERATE(as<std::string>{}, "llama", "qwen3");
  const at::ScalarType dtype = GENERATE(at::kFloat, at::kBFloat16);
  const auto recompute = GENERATE(Recompute::none, Recompute::cheap, Recompute::selective, Recompute::full);
  const auto model = small_model(arch, false);
  const auto batches = stage_microbatches(model);
  Stages stages = build_stages(model, {1, 2, 1}, dtype, 7, recompute);
  int64_t tokens = 0;
  for (size_t i = 0; i < batches.size(); ++i) {
    Tensor x;
    for (auto& stage : stages) x = stage->forward(static_cast<int>(i), batches[i], x);
    tokens += batches[i].segments.tokens();
    for (auto& stage : stages) {
      INFO("stage " << stage->index() << ", " << tokens << " tokens");
      const app::StageFootprint predicted =
          app::dry_run(model, stage->slice(),
                       {.length = tokens, .bfloat16 = dtype == at::kBFloat16, .recompute = recompute});
      CHECK(stage->saved_bytes() == predicted.activation);
    }
  }
}

TEST_CASE("discard forgets a step between any of its passes") {
  const c10::InferenceMode inference;
  at::set_num_threads(1);
  const auto model = small_model("llama", false);
  const auto batches = stage_microbatches(model);
  Stages stages = build_stages(model, {4}, at::kFloat);
  models::TransformerStage& stage = *stages[0];
  stage.forward(0, batches[0], {});
  stage.backward_input(0, {});
  stage.forward(1, batches[1], {});
  CHECK(stage.saved_bytes() > 0);
  CHECK(stage.pending_bytes() > 0);
  stage.discard();
  CHECK(stage.saved_bytes() == 0);
  CHECK(stage.pending_bytes() == 0);
  CHECK(stage.take_loss() == 0);
  stage.parameters().zero_grad();
  Stages fresh = build_stages(model, {4}, at::kFloat);
  const StageStep again = run_step(stages, batches, Backward::split);
  const StageStep expected = run_step(fresh, batches, Backward::split);
  CHECK(again.loss == expected.loss);
  for (const auto& [name, grad] : expected.grads) CHECK(same_bits(again.grads.at(name), grad));
}

TEST_CASE("misuse is an error that names stage and microbatch") {
  const c10::InferenceMode inference;
  const auto model = small_model("llama", false);
  const auto data = random_microbatch(model, 1, 4, 1);
  Stages stages = build_stages(model, {2, 2}, at::kFloat);
  stages[0]->forward(3, data, {});
  CHECK(error_of([&] { stages[0]->forward(3, data, {}); }) ==
        "stage 0: microbatch 3 ran forward twice without a backward");
  CHECK(error_of([&] { stages[1]->backward(5, {}); }) ==
        "stage 1: backward of microbatch 5, which did not run forward");
  CHECK(error_of([&] { stages[1]->backward_input(5, {}); }) ==
        "stage 1: backward of microbatch 5, which did not run forward");
  CHECK(error_of([&] { stages[1]->backward_weight(5); }) ==
        "stage 1: no weight gradients of microbatch 5 are pending");
  CHECK(error_of([&] {
          stages[1]->forward(0, data, at::zeros({5, 40}));
        }) == "stage 1: its input must be [4, 40], not [5, 40]");
  CHECK(error_of([&] { stages[1]->forward(0, data, {}); }) ==
        "stage 1: its input must be [4, 40], not undefined");
  CHECK(error_of([&] { stages[1]->backward(0, {}); }) ==
        "stage 1: backward of microbatch 0, which did not run forward");
  CHECK(error_of([&] {
          stages[0]->forward_only(random_microbatch(small_model("llama", false), 1, 17, 1), {});
        }) == "stage 0: a document of 17 tokens, but the model takes 16");
  auto beyond = data;
  beyond.positions = data.positions + 13;
  CHECK(error_of([&] { stages[0]->forward_only(beyond, {}); }) ==
        "stage 0: positions from 13 to 16, outside of [0, 16)");
  // Angles are made for max_seq positions, whatever texts the model could take.
  auto longer = model;
  longer.max_positions = 64;
  CHECK(error_of([&] { build_stages(longer, {4}, at::kFloat)[0]->forward_only(beyond, {}); }) ==
        "stage 0: positions from 13 to 16, outside of [0, 16)");
  beyond.positions = data.positions.narrow(0, 0, 3);
  CHECK(error_of([&] { stages[0]->forward_only(beyond, {}); }) ==
        "stage 0: positions [3] of a list of 4 tokens");
  beyond = data;
  beyond.tokens = data.tokens.view({2, 2});
  CHECK(error_of([&] { stages[0]->forward_only(beyond, {}); }) ==
        "stage 0: ids [2, 2] of a list of 4 tokens");
  CHECK(error_of([&] { stages[0]->logits(data, {}, {}); }) ==
        "stage 0 has no head: only the last stage gives logits");
  CHECK_THROWS_AS(models::TransformerStage(model, {.index = 0, .first_layer = 2, .end_layer = 2}), Error);
  CHECK_THROWS_AS(models::TransformerStage(model, {.index = 0, .first_layer = 2, .end_layer = 5}), Error);
}

// A model gives the same bits however it is cut into stages, and a stage keeps what it promises to keep.
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <cstdint>

#include "core/base/error.h"
#include "models/flops.h"
#include "test/core/kernels/compare.h"
#include "test/models/model_support.h"
#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::test;

namespace {

struct Result {
  pipeline::LossSum loss;
  std::map<std::string, at::Tensor> gradients;
};

// All forwards, then all backwards in ascending order, as GPipe does.
Result train_step(const models::ModelConfig& model, int stage_count, at::ScalarType type, Backward how) {
  Stages stages = build_stages(model, stage_count, type);
  const auto microbatches = random_microbatches(model, 3);
  for (size_t i = 0; i < microbatches.size(); ++i) forward(stages, static_cast<int>(i), microbatches[i]);
  for (auto& stage : stages) CHECK(stage->saved_microbatches() == microbatches.size());
  for (size_t i = 0; i < microbatches.size(); ++i) backward(stages, static_cast<int>(i), how);
  for (auto& stage : stages) {
    CHECK(stage->saved_microbatches() == 0);
    CHECK(stage->pending_weight_gradients() == 0);
    CHECK(stage->saved_bytes() == 0);
  }
  return {.loss = stages.back()->take_loss(), .gradients = gradients(stages)};
}

void check_same(const Result& actual, const Result& expected) {
  CHECK(actual.loss.loss == expected.loss.loss);
  CHECK(actual.loss.tokens == expected.loss.tokens);
  REQUIRE(actual.gradients.size() == expected.gradients.size());
  for (const auto& [name, gradient] : expected.gradients) {
    INFO(name);
    CHECK(same_bits(actual.gradients.at(name), gradient));
  }
}

}  // namespace

TEST_CASE("losses and gradients are the same bits for 1, 2, 3 and 4 stages, B and I then W", "[models]") {
  at::set_num_threads(1);
  const c10::InferenceMode inference;
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const auto arch = GENERATE(as<std::string>{}, "llama", "qwen3");
  const auto tied = GENERATE(false, true);
  CAPTURE(type, arch, tied);
  const models::ModelConfig model = small_model(arch, tied);
  const Result expected = train_step(model, 1, type, Backward::whole);
  CHECK(expected.loss.loss > 0);
  int64_t valid = 0;
  for (const auto& data : random_microbatches(model, 3)) {
    valid += data.labels.ne(data::ignore_label).sum().item<int64_t>();
  }
  CHECK(expected.loss.tokens == valid);
  for (const auto& [name, gradient] : expected.gradients) {
    INFO(name);
    CHECK(gradient.norm().item<double>() > 0);
  }
  check_same(train_step(model, 1, type, Backward::split), expected);
  for (const int stages : {2, 3, 4}) {
    CAPTURE(stages);
    check_same(train_step(model, stages, type, Backward::whole), expected);
    check_same(train_step(model, stages, type, Backward::split), expected);
  }
}

TEST_CASE("forward_only gives forward's loss, keeps nothing and touches no gradient", "[models]") {
  at::set_num_threads(1);
  const c10::InferenceMode inference;
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const auto stage_count = GENERATE(1, 3);
  const models::ModelConfig model = small_model("qwen3", true);
  Stages stages = build_stages(model, stage_count, type);
  const auto microbatches = random_microbatches(model, 2);
  for (const auto& data : microbatches) {
    at::Tensor x;
    for (auto& stage : stages) x = stage->forward_only(data, std::move(x));
    CHECK_FALSE(x.defined());
  }
  const pipeline::LossSum evaluated = stages.back()->take_loss();
  for (auto& stage : stages) {
    CHECK(stage->saved_microbatches() == 0);
    CHECK(stage->parameters().flat_grad().count_nonzero().item<int64_t>() == 0);
  }
  CHECK(stages.back()->take_loss().tokens == 0);
  for (size_t i = 0; i < microbatches.size(); ++i) forward(stages, static_cast<int>(i), microbatches[i]);
  const pipeline::LossSum trained = stages.back()->take_loss();
  CHECK(evaluated.loss == trained.loss);
  CHECK(evaluated.tokens == trained.tokens);
}

TEST_CASE("logits give the loss, for all rows and for some", "[models]") {
  at::set_num_threads(1);
  const c10::InferenceMode inference;
  const models::ModelConfig model = small_model("llama", false);
  Stages stages = build_stages(model, 2, at::kFloat);
  const data::Microbatch data = random_microbatches(model, 1).front();
  const at::Tensor boundary = stages[0]->forward_only(data, {});
  const at::Tensor logits = stages[1]->logits(data, boundary);
  REQUIRE(logits.sizes() == at::IntArrayRef{data.batch * data.seq, model.vocab});
  stages[1]->forward_only(data, boundary);
  const double expected =
      at::nll_loss(at::log_softmax(logits.to(at::kDouble), 1), data.labels.reshape({-1}), {}, at::Reduction::Sum)
          .item<double>();
  CHECK(stages[1]->take_loss().loss == Approx(expected).epsilon(1e-6));
  const at::Tensor rows = at::arange(3, 20, 8);
  CHECK(relative_error(stages[1]->logits(data, boundary, rows), logits.index_select(0, rows)) < 1e-6);
  CHECK_THROWS_AS(stages[0]->logits(data, {}), Error);
}

TEST_CASE("a stage keeps exactly the bytes that the model of costs says", "[models]") {
  at::set_num_threads(1);
  const c10::InferenceMode inference;
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const auto arch = GENERATE(as<std::string>{}, "llama", "qwen3");
  const auto stage_count = GENERATE(1, 3);
  CAPTURE(type, arch, stage_count);
  const models::ModelConfig model = small_model(arch, false);
  Stages stages = build_stages(model, stage_count, type);
  int64_t tokens = 0;
  const auto microbatches = random_microbatches(model, 2);
  for (size_t i = 0; i < microbatches.size(); ++i) {
    forward(stages, static_cast<int>(i), microbatches[i]);
    tokens += microbatches[i].batch * microbatches[i].seq;
    for (auto& stage : stages) {
      CHECK(stage->saved_bytes() == models::activation_bytes(model, stage->slice(), tokens, type == at::kBFloat16));
    }
  }
}

TEST_CASE("discard forgets a failed step", "[models]") {
  at::set_num_threads(1);
  const c10::InferenceMode inference;
  const models::ModelConfig model = small_model("llama", false);
  Stages stages = build_stages(model, 1, at::kFloat);
  const auto microbatches = random_microbatches(model, 2);
  forward(stages, 0, microbatches[0]);
  stages[0]->backward_input(0, {});
  forward(stages, 1, microbatches[1]);
  stages[0]->discard();
  CHECK(stages[0]->saved_microbatches() == 0);
  CHECK(stages[0]->pending_weight_gradients() == 0);
  CHECK(stages[0]->take_loss().tokens == 0);
  forward(stages, 0, microbatches[0]);  // the same microbatch again
  CHECK(stages[0]->saved_microbatches() == 1);
}

TEST_CASE("a stage refuses passes out of order and inputs of another shape", "[models]") {
  const c10::InferenceMode inference;
  const models::ModelConfig model = small_model("llama", false);
  Stages stages = build_stages(model, 2, at::kFloat);
  const data::Microbatch data = random_microbatches(model, 1).front();
  CHECK_THROWS_WITH(stages[0]->backward(3, {}), contains_text("stage 0: backward of microbatch 3"));
  CHECK_THROWS_WITH(stages[0]->backward_input(3, {}), contains_text("stage 0: backward of microbatch 3"));
  CHECK(stages[0]->pending_weight_gradients() == 0);
  CHECK_THROWS_WITH(stages[0]->backward_weight(3), contains_text("no weight gradients of microbatch 3"));
  stages[0]->forward(3, data, {});
  CHECK_THROWS_WITH(stages[0]->forward(3, data, {}), contains_text("microbatch 3 ran forward twice"));
  CHECK_THROWS_WITH(stages[1]->forward(3, data, at::zeros({4, 40})), contains_text("must be [38, 40], not [4, 40]"));
  CHECK_THROWS_WITH(stages[1]->forward(4, data, {}), contains_text("undefined"));
  CHECK(stages[1]->saved_microbatches() == 0);
  data::Microbatch longer = data;
  longer.seq = 65;
  CHECK_THROWS_WITH(stages[0]->forward(5, longer, {}), contains_text("rotary tables end at 64"));
  CHECK_THROWS_AS(models::TransformerStage(model, {.index = 0, .first_layer = 2, .end_layer = 2}), Error);
  CHECK_THROWS_AS(models::TransformerStage(model, {.index = 0, .first_layer = 2, .end_layer = 5}), Error);
}

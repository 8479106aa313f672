// A stage with token lists divided over ranks, against the same stage on one rank.
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "app/forecast/footprint.h"
#include "core/data/microbatch.h"
#include "core/data/tokens/context_split.h"
#include "models/stage_parallelism.h"
#include "models/transformer_stage.h"
#include "parallel/comm/thread/thread_communicator.h"
#include "test/core/kernels/compare.h"
#include "test/models/small_model.h"
#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::test;
using at::Tensor;
using config::Recompute;
using models::ContextKind;

namespace {

struct Run {
  ContextKind kind = ContextKind::ring;
  Recompute recompute = Recompute::none;
  bool split_backward = false;  // I, then W
};

struct Result {
  double loss = 0;
  int64_t tokens = 0;
  std::map<std::string, Tensor> grads;  // summed over ranks
};

models::ModelConfig four_heads(bool tied) {
  models::ModelConfig model = small_model("qwen3", tied, 3);
  model.heads = 4;
  model.kv_heads = 2;
  model.max_seq = 48;
  return model;
}

// The weights of build_stages.
std::unique_ptr<models::TransformerStage> build(const models::ModelConfig& model, const Run& run,
                                                const models::StageParallelism& parallelism) {
  auto stage = std::make_unique<models::TransformerStage>(model, models::whole_model(model), parallelism);
  stage->recompute_by_microbatch({run.recompute});
  stage->materialise(at::kCPU, at::kFloat);
  Stages same = build_stages(model, {model.layers}, at::kFloat);
  for (nn::Slice* slice : stage->parameters().slices()) {
    slice->master.copy_(same[0]->parameters().find(slice->spec.name)->master);
  }
  stage->parameters().refresh_compute();
  return stage;
}

Result step(models::TransformerStage& stage, const std::vector<data::Microbatch>& batches, const Run& run) {
  const int m = static_cast<int>(batches.size());
  for (int i = 0; i < m; ++i) stage.forward(i, batches[static_cast<size_t>(i)], {});
  for (int i = 0; i < m; ++i) run.split_backward ? stage.backward_input(i, {}) : stage.backward(i, {});
  if (run.split_backward) {
    for (int i = 0; i < m; ++i) stage.backward_weight(i);
  }
  Result result{.loss = stage.take_loss(), .grads = {}};
  for (const data::Microbatch& batch : batches)
    result.tokens += batch.labels.ne(data::ignore_label).sum().item<int64_t>();
  for (const nn::Slice* slice : stage.parameters().slices())
    result.grads[slice->spec.name] = slice->grad.clone();
  return result;
}

using Splits = std::vector<tokens::ContextSplit>;  // one per microbatch

Result on_ranks(const models::ModelConfig& model, const std::vector<data::Microbatch>& batches,
                const Splits& splits, const Run& run) {
  const int ranks = splits[0].parts();
  std::vector<Result> all(static_cast<size_t>(ranks));
  comm::run_thread_ranks(ranks, [&](comm::Communicator& group) {
    const c10::InferenceMode inference;
    at::set_num_threads(1);
    const auto stage = build(model, run, models::make_stage_parallelism({.cp = &group, .cp_kind = run.kind}));
    std::vector<data::Microbatch> parts;
    for (size_t i = 0; i < batches.size(); ++i) {
      tokens::ContextSplit split = splits[i];
      split.part = group.rank();
      parts.push_back(
          data::part_of(batches[i], std::make_shared<const tokens::ContextSplit>(std::move(split))));
    }
    all[static_cast<size_t>(group.rank())] = step(*stage, parts, run);
  });
  const c10::InferenceMode inference;
  Result sum = std::move(all[0]);
  for (size_t r = 1; r < all.size(); ++r) {
    sum.loss += all[r].loss;
    sum.tokens += all[r].tokens;
    for (auto& [name, grad] : sum.grads) grad.add_(all[r].grads.at(name));
  }
  return sum;
}

void check_close(const Result& actual, const Result& expected) {
  CHECK(actual.tokens == expected.tokens);
  CHECK(relative_error(actual.loss, expected.loss) <= 1e-6);
  REQUIRE(actual.grads.size() == expected.grads.size());
  for (const auto& [name, grad] : expected.grads) {
    INFO(name);
    CHECK(grad.norm().item<double>() > 0);
    CHECK(relative_error(actual.grads.at(name), grad) < gradient_tolerance);
  }
}

}  // namespace

TEST_CASE("a stage on context-parallel ranks has the losses and gradients of one rank") {
  at::set_num_threads(1);
  const bool tied = GENERATE(false, true);
  const int ranks = GENERATE(2, 4);
  const Run run =
      GENERATE(Run{.kind = ContextKind::ring}, Run{.kind = ContextKind::ulysses},
               Run{.kind = ContextKind::ring, .recompute = Recompute::selective},
               Run{.kind = ContextKind::ring, .recompute = Recompute::full, .split_backward = true},
               Run{.kind = ContextKind::ulysses, .recompute = Recompute::full, .split_backward = true});
  INFO("tied " << tied << ", " << ranks << " ranks");
  const auto model = four_heads(tied);
  // Rows; also documents over several ranks, of one token, and shorter than a chunk.
  const std::vector<data::Microbatch> batches = {random_microbatch(model, 2, 16, 1),
                                                 random_documents(model, {3, 1, 22, 6, 16}, 2)};
  const auto order = models::order_of(run.kind);
  const Splits splits = {tokens::split_rows(order, 2, 16, ranks, 0),
                         tokens::split_rows(order, 1, 48, ranks, 0)};
  const c10::InferenceMode inference;
  const auto whole = build(model, {}, {});
  const Result expected = step(*whole, batches, {});
  const Result actual = on_ranks(model, batches, splits, run);
  check_close(actual, expected);
  const Result again = on_ranks(model, batches, splits, run);
  CHECK(again.loss == actual.loss);
  for (const auto& [name, grad] : actual.grads) CHECK(same_bits(again.grads.at(name), grad));
}

TEST_CASE("a context-parallel stage holds the bytes that a dry run predicts") {
  const ContextKind kind = GENERATE(ContextKind::ring, ContextKind::ulysses);
  const Recompute recompute = GENERATE(Recompute::none, Recompute::full);
  const auto model = four_heads(false);
  const auto whole = random_microbatch(model, 2, 16, 1);
  const models::StageSlice slice{
      .index = 0, .first_layer = 0, .end_layer = 3, .embedding = true, .head = true};
  const app::StageFootprint predicted = app::dry_run(model, slice,
                                                     {.documents = 2,
                                                      .length = 16,
                                                      .bfloat16 = false,
                                                      .recompute = recompute,
                                                      .mesh = {.cp = 2},
                                                      .cp_kind = kind});
  std::vector<int64_t> bytes(2);
  comm::run_thread_ranks(2, [&](comm::Communicator& group) {
    const c10::InferenceMode inference;
    at::set_num_threads(1);
    const auto stage = build(model, {.recompute = recompute},
                             models::make_stage_parallelism({.cp = &group, .cp_kind = kind}));
    auto split = tokens::split_rows(models::order_of(kind), 2, 16, 2, group.rank());
    stage->forward(0, data::part_of(whole, std::make_shared<const tokens::ContextSplit>(std::move(split))),
                   {});
    bytes[static_cast<size_t>(group.rank())] = stage->saved_bytes();
    stage->discard();
  });
  CHECK(bytes[0] == predicted.activation);
  CHECK(bytes[1] == predicted.activation);
  CHECK(predicted.passes.forward.cost.on(kernels::Wire::cp).bytes > 0);
  CHECK(predicted.boundary == 16 * model.hidden * 4);
}

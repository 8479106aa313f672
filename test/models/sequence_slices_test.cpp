// A stage that takes token lists in sequence slices, against the same stage with whole lists.
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <map>
#include <string>
#include <vector>

#include "core/data/microbatch.h"
#include "models/stage_parallelism.h"
#include "test/core/kernels/compare.h"
#include "test/models/small_model.h"
#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::test;
using config::Recompute;

namespace {

struct Step {
  double loss = 0;
  std::map<std::string, at::Tensor> grads;
};

std::vector<data::Microbatch> lists_of(const models::ModelConfig& model) {
  // Documents that cross slices, that have one token, and that are within a slice.
  return {random_documents(model, {16, 16}, 1), random_documents(model, {16}, 2),
          random_documents(model, {3, 1, 12, 6, 15}, 3)};
}

// Runs all slices of a list forward, then backward from the last one.
Step run(Stages& stages, const std::vector<data::Microbatch>& lists, int slices, bool split_backward) {
  std::vector<data::Microbatch> all;
  for (size_t list = 0; list < lists.size(); ++list) {
    if (slices == 1) all.push_back(lists[list]);
    if (slices == 1) continue;
    for (const data::Microbatch& slice :
         data::cut_in_slices(lists[list], slices, 8, 1, static_cast<int>(list)))
      all.push_back(slice);
  }
  for (size_t i = 0; i < all.size(); ++i) {
    at::Tensor x;
    for (auto& stage : stages) x = stage->forward(static_cast<int>(i), all[i], x);
  }
  std::vector<int> order;
  for (int list = 0; list < static_cast<int>(lists.size()); ++list) {
    for (int slice = slices; slice-- > 0;) order.push_back(list * slices + slice);
  }
  for (const int i : order) {
    at::Tensor dy;
    for (auto stage = stages.rbegin(); stage != stages.rend(); ++stage)
      dy = split_backward ? (*stage)->backward_input(i, dy) : (*stage)->backward(i, dy);
  }
  for (const int i : order) {
    for (auto& stage : stages)
      if (split_backward) stage->backward_weight(i);
  }
  Step result{.loss = stages.back()->take_loss(), .grads = {}};
  for (auto& stage : stages) {
    CHECK(stage->saved_bytes() == 0);
    for (const nn::Slice* slice : stage->parameters().slices())
      result.grads[slice->spec.name] = slice->grad.clone();
  }
  return result;
}

void check_equal(const Step& actual, const Step& expected) {
  CHECK(actual.loss == expected.loss);
  for (const auto& [name, grad] : expected.grads) {
    INFO(name);
    CHECK(actual.grads.at(name).equal(grad));
  }
}

}  // namespace

TEST_CASE("a stage has the losses and gradients of whole lists when they come in sequence slices") {
  at::set_num_threads(1);
  const c10::InferenceMode inference;
  const std::string arch = GENERATE("qwen3", "gemma2", "gpt_oss", "phi3", "deepseek_v3", "qwen3_moe");
  const Recompute recompute = GENERATE(Recompute::none, Recompute::selective, Recompute::full);
  const bool split_backward = GENERATE(false, true);
  const models::ModelConfig model = small_model(arch, /*tied=*/false);
  const std::vector<data::Microbatch> lists = lists_of(model);
  Stages whole = build_stages(model, {4}, at::kFloat);
  const Step expected = run(whole, lists, 1, split_backward);
  for (const int slices : {2, 3, 7}) {
    CAPTURE(arch, to_string(recompute), split_backward, slices);
    Stages stages = build_stages(model, {4}, at::kFloat, 7, recompute);
    const Step actual = run(stages, lists, slices, split_backward);
    CHECK(relative_error(actual.loss, expected.loss) <= 1e-6);
    for (const auto& [name, grad] : expected.grads) {
      INFO(name);
      if (name.ends_with("attn.k.bias") || grad.norm().item<double>() == 0) continue;
      CHECK(relative_error(actual.grads.at(name), grad) < gradient_tolerance);
    }
  }
}

TEST_CASE(
    "sequence slices have one result to the bit, whatever the stages, what is computed again and what "
    "failed") {
  at::set_num_threads(1);
  const c10::InferenceMode inference;
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const models::ModelConfig model = small_model("qwen3", /*tied=*/false);
  const std::vector<data::Microbatch> lists = lists_of(model);
  constexpr int slices = 3;
  const auto stages_of = [&](const std::vector<int64_t>& split, Recompute recompute) {
    return build_stages(model, split, type, 7, recompute);
  };
  Stages one = stages_of({4}, Recompute::none);
  const Step expected = run(one, lists, slices, /*split_backward=*/false);
  for (const Recompute recompute : {Recompute::none, Recompute::full}) {
    for (const bool split_backward : {false, true}) {
      CAPTURE(to_string(recompute), split_backward);
      Stages stages = stages_of({1, 2, 1}, recompute);
      check_equal(run(stages, lists, slices, split_backward), expected);
    }
  }
  // A step that ends after some passes leaves nothing to the next one.
  Stages failed = stages_of({4}, Recompute::full);
  const std::vector<data::Microbatch> parts = data::cut_in_slices(lists[0], slices, 8, 1, 0);
  int64_t targets = 0;
  for (const data::Microbatch& part : parts) targets += part.targets;
  CHECK(targets == lists[0].targets);
  for (int i = 0; i < slices; ++i) failed[0]->forward(i, parts[static_cast<size_t>(i)], {});
  failed[0]->backward_input(slices - 1, {});
  failed[0]->discard();
  failed[0]->parameters().zero_grad();
  check_equal(run(failed, lists, slices, /*split_backward=*/true), expected);
}

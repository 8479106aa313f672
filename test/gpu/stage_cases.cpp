// Stages of small models on the device under test against the CPU in float32, and against themselves bit for
// bit.
#include <c10/core/InferenceMode.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/kernels/exact_sum.h"
#include "core/kernels/kernels.h"
#include "core/nn/weight_grad_queue.h"
#include "test/gpu/model_support.h"
#include "test/models/small_model.h"
#include "test/models/stage_step.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

using namespace pptrain;
using namespace pptrain::test;

namespace {

// A small model with a head width that a GPU's libraries accept (attention::why_no_attention).
models::ModelConfig model_for_gpu(const std::string& arch, bool tied, int64_t layers = 4) {
  models::ModelConfig model = small_model(arch, tied, layers);
  if (model.kv_rank == 0) return model;
  model.nope_dim = 12;
  model.head_dim = model.nope_dim + model.rope_dim;
  return model;
}

const std::vector<std::vector<int64_t>> lengths = {{9, 9}, {16}, {5, 1, 8, 3}};

std::vector<data::Microbatch> microbatches(const models::ModelConfig& model, at::Device device) {
  std::vector<data::Microbatch> result;
  for (size_t i = 0; i < lengths.size(); ++i) {
    data::Microbatch batch =
        random_documents(model, lengths[i], static_cast<int>(i),
                         lengths[i].size() > 1 ? std::optional<size_t>(1) : std::nullopt);
    batch.tokens = batch.tokens.to(device);
    batch.labels = batch.labels.to(device);
    batch.positions = batch.positions.to(device);
    batch.segments = tokens::make_segments(batch.segments.host_starts, device);
    result.push_back(std::move(batch));
  }
  return result;
}

Stages stages_at(const Place& place, const models::ModelConfig& model, const std::vector<int64_t>& split) {
  Stages stages =
      build_stages(model, split, place.type, /*seed=*/7, config::Recompute::none, {}, place.device);
  for (auto& stage : stages) {
    for (nn::Slice* slice : stage->parameters().slices())
      slice->master.copy_(slice->master.to(at::kBFloat16));
    stage->parameters().refresh_compute();
  }
  return stages;
}

// A CPU has no streams, so work runs at once.
std::unique_ptr<nn::SideStream> side_stream(at::Device device) {
  if (device.is_cuda()) return nn::make_side_stream(device);
  return std::make_unique<nn::SideStream>();
}

// One step: the loss, and every gradient that is more than rounding. `side`, if given, runs B's weight
// gradients.
Results step(const Place& place, const models::ModelConfig& model, const std::vector<int64_t>& split,
             Backward backward, nn::SideStream* side = nullptr) {
  Stages stages = stages_at(place, model, split);
  if (side != nullptr) {
    for (auto& stage : stages) stage->overlap_weight_gradients(*side);
  }
  const StageStep done = run_step(stages, microbatches(model, place.device), backward);
  Results results{{"loss", at::zeros({}, at::kDouble).fill_(done.loss)}};
  for (auto& stage : stages) {
    for (auto& group : stage->parameters().groups()) add_gradients(results, group);
  }
  return results;
}

// Splits of the layers among stages, with I and W apart, change no bit of a step.
void check_layouts(const Place& place, const models::ModelConfig& model) {
  const Results expected = step(place, model, {4}, Backward::at_once);
  for (const auto& split : std::vector<std::vector<int64_t>>{{4}, {1, 3}, {1, 1, 1, 1}}) {
    const Results actual = step(place, model, split, Backward::split);
    REQUIRE(actual.size() == expected.size());
    for (const auto& [name, tensor] : expected) {
      INFO(name << ", stages: " << split.size());
      CHECK(actual.at(name).equal(tensor));
    }
  }
}

}  // namespace

TEST_CASE("a model's loss and gradients on the device", "[gpu]") {
  if (!device_is_there()) return;
  const c10::InferenceMode inference;
  std::vector<std::string> architectures = families;
  architectures.insert(architectures.end(), {"llama", "qwen3", "qwen3_moe"});
  for (const std::string& arch : architectures) {
    for (const auto type : {at::kFloat, at::kBFloat16}) {
      const models::ModelConfig model = model_for_gpu(arch, /*tied=*/false);
      // In bfloat16 a token may go to another expert, and norms of small sums magnify rounding: such
      // differences are no mistakes.
      if ((model.sparse.experts > 0 || arch == "olmo2") && type == at::kBFloat16) continue;
      CAPTURE(arch, type);
      compare_place([&](const Place& place) { return step(place, model, {4}, Backward::at_once); }, type,
                    type == at::kFloat ? 2e-4 : 6e-2);
    }
  }
}

TEST_CASE("stages and split backward passes change no bit on the device", "[gpu]") {
  if (!device_is_there()) return;
  const c10::InferenceMode inference;
  for (const std::string arch : {"llama", "qwen3", "qwen3_moe", "gemma2", "gpt_oss", "deepseek_v3"}) {
    for (const auto type : {at::kFloat, at::kBFloat16}) {
      CAPTURE(arch, type);
      check_layouts({device_under_test(), type}, model_for_gpu(arch, /*tied=*/true));
    }
  }
}

TEST_CASE("a model in FP8 on the device", "[gpu]") {
  if (!device_is_there()) return;
  const c10::InferenceMode inference;
  models::ModelConfig model = model_for_gpu("llama", /*tied=*/false);
  model.hidden = 48;  // FP8 takes multiples of 16
  model.intermediate = 64;
  compare_place(
      [&](const Place& place) {
        model.fp8 = place.type == at::kBFloat16;
        return step(place, model, {4}, Backward::at_once);
      },
      at::kBFloat16, 0.6);  // ten seeds gave at most 0.33, since E4M3 has four bits
  const Place place{device_under_test(), at::kBFloat16};
  model.fp8 = false;
  const Results in_bf16 = step(place, model, {4}, Backward::at_once);
  model.fp8 = true;
  CHECK_FALSE(step(place, model, {4}, Backward::at_once).at("loss").equal(in_bf16.at("loss")));
  check_layouts(place, model);
}

TEST_CASE("weight gradients on a second stream have the bits of those on one", "[gpu]") {
  if (!device_is_there()) return;
  const c10::InferenceMode inference;
  for (const std::string arch : {"llama", "qwen3_moe"}) {
    const Place place{device_under_test(), at::kBFloat16};
    const models::ModelConfig model = model_for_gpu(arch, /*tied=*/true);
    const Results expected = step(place, model, {2, 2}, Backward::at_once);
    for (int repeat = 0; repeat < 5; ++repeat) {
      const auto side = side_stream(place.device);
      const Results actual = step(place, model, {2, 2}, Backward::at_once, side.get());
      REQUIRE(actual.size() == expected.size());
      for (const auto& [name, tensor] : expected) {
        INFO(arch << ' ' << name);
        CHECK(actual.at(name).equal(tensor));
      }
    }
  }
}

// Small enough for compute-sanitizer, which runs this case alone.
TEST_CASE("every kernel of a step, at small shapes", "[gpu][small]") {
  if (!device_is_there()) return;
  const c10::InferenceMode inference;
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    const Place place{device_under_test(), type};
    const models::ModelConfig model = model_for_gpu("qwen3", /*tied=*/false, /*layers=*/1);
    Stages stages = stages_at(place, model, {1});
    run_step(stages, microbatches(model, place.device), Backward::split);
    for (nn::Buffer* shard : stages.front()->parameters().buffers()) {
      Tensor sum = at::zeros({20}, at::TensorOptions().dtype(at::kLong).device(place.device));
      kernels::add_squares({{shard->grad, 0}}, sum);
      CHECK(sum.count_nonzero().item<int64_t>() > 0);
      Tensor exp_avg = at::zeros_like(shard->master), exp_avg_sq = at::zeros_like(shard->master);
      const Tensor before = shard->master.clone();
      kernels::adamw({{shard->master,
                       shard->grad,
                       exp_avg,
                       exp_avg_sq,
                       shard->compute.defined() ? std::optional(shard->compute) : std::nullopt,
                       {.lr = 0.01},
                       std::nullopt}});
      CHECK_FALSE(shard->master.equal(before));
      CHECK(shard->master.isfinite().all().item<bool>());
    }
  }
}

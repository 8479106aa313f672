// The bytes that a stage holds and needs: predicted from its sizes, and allocated.
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <cmath>
#include <string>
#include <vector>

#include "app/forecast/footprint.h"
#include "test/models/allocation_counter.h"
#include "test/models/small_model.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

using namespace pptrain;
using namespace pptrain::test;
using at::Tensor;
using config::Recompute;

namespace {

struct Case {
  models::ModelConfig model;
  bool bfloat16;
  Recompute recompute;

  at::ScalarType dtype() const { return bfloat16 ? at::kBFloat16 : at::kFloat; }
  Stages stages() const { return build_stages(model, {1, 2, 1}, dtype(), 7, recompute); }
  app::StageFootprint predicted(const models::TransformerStage& stage, int64_t documents, int64_t length,
                                bool overlap = false, const nn::LossTerms& terms = {}) const {
    return app::dry_run(model, stage.slice(),
                        {.documents = documents,
                         .length = length,
                         .bfloat16 = bfloat16,
                         .recompute = recompute,
                         .loss_terms = terms,
                         .overlap = overlap});
  }
};

Case any_case() {
  const std::string arch = GENERATE(as<std::string>{}, "llama", "qwen3");
  const bool bfloat16 = GENERATE(false, true);
  const auto recompute = GENERATE(Recompute::none, Recompute::cheap, Recompute::selective, Recompute::full);
  Case c{.model = small_model(arch, false), .bfloat16 = bfloat16, .recompute = recompute};
  c.model.attention_bias = GENERATE(false, true);
  c.model.mlp_bias = c.model.attention_bias && arch == "llama";
  const auto targets = GENERATE(as<std::vector<std::string>>{}, std::vector<std::string>{},
                                std::vector<std::string>{"*.attn.q", "*.attn.v"},
                                std::vector<std::string>{"layers.*.attn.*", "layers.*.mlp.*"});
  if (!targets.empty()) c.model.lora = {.rank = 3, .alpha = 6, .targets = targets};
  return c;
}

// With widths that are multiples of 16.
void multiply_in_fp8(models::ModelConfig& model) {
  model.fp8 = true;
  model.hidden = 32;
  model.heads = 4;
  model.kv_heads = 2;
  model.head_dim = 8;
  model.intermediate = model.intermediate / 16 * 16;
}

// ATen's sum of the losses makes a float64 copy inside, which a dry run does not see.
bool close(int64_t predicted, int64_t measured, int64_t tokens) {
  return std::abs(static_cast<double>(predicted - measured)) <=
         0.01 * static_cast<double>(measured) + static_cast<double>(8 * tokens);
}

}  // namespace

TEST_CASE("between its passes a stage holds activations or weight operands, to the byte, and nothing else") {
  const c10::InferenceMode inference;
  at::set_num_threads(1);
  const Case c = any_case();
  Stages stages = c.stages();
  const auto data = random_microbatch(c.model, 3, 7, 1);
  const Tensor boundary = at::zeros({21, c.model.hidden}, c.dtype());
  for (auto& stage : stages) {
    INFO(c.model.arch << " bfloat16 " << c.bfloat16 << " recompute " << static_cast<int>(c.recompute)
                      << " targets " << c.model.lora.rank * c.model.lora.targets.size() << " stage "
                      << stage->index());
    const app::StageFootprint predicted = c.predicted(*stage, 3, 7);
    CHECK(predicted.boundary == 21 * c.model.hidden * static_cast<int64_t>(boundary.element_size()));
    const int64_t returned = stage->is_first() ? 0 : predicted.boundary;
    const AllocationCounter counter;
    stage->forward(4, data, stage->is_first() ? Tensor() : boundary.clone());
    stage->take_loss();
    CHECK(counter.now() == stage->saved_bytes());
    CHECK(stage->saved_bytes() == predicted.activation);
    const Tensor dx = stage->backward_input(4, stage->is_last() ? Tensor() : boundary.clone());
    CHECK(stage->saved_bytes() == 0);
    CHECK(counter.now() == stage->pending_bytes() + returned);
    CHECK(stage->pending_bytes() == predicted.weight_operands);
    stage->backward_weight(4);
    CHECK(stage->pending_bytes() == 0);
    CHECK(counter.now() == returned);
  }
}

TEST_CASE("what sparse layers keep between passes does not depend on the routing, and is as predicted") {
  const c10::InferenceMode inference;
  at::set_num_threads(1);
  Case c{.model = small_model("qwen3_moe", false),
         .bfloat16 = GENERATE(false, true),
         .recompute = GENERATE(Recompute::none, Recompute::selective, Recompute::full)};
  Stages stages = c.stages();
  const auto data = random_microbatch(c.model, 3, 7, 1);
  const Tensor boundary = at::zeros({21, c.model.hidden}, c.dtype());
  for (auto& stage : stages) {
    const app::StageFootprint predicted = c.predicted(*stage, 3, 7);
    stage->forward(0, data, stage->is_first() ? Tensor() : boundary.clone());
    CHECK(stage->saved_bytes() == predicted.activation);
    stage->backward_input(0, stage->is_last() ? Tensor() : boundary.clone());
    CHECK(stage->pending_bytes() == predicted.weight_operands);
    stage->backward_weight(0);
    const auto loads = stage->take_loads();
    CHECK(loads.size() == 1);  // layer 1 is dense
    for (const auto& [layer, rows] : loads) CHECK(rows.sum().item<int64_t>() == 21 * c.model.sparse.chosen);
  }
}

TEST_CASE("a part of a spread head holds what is predicted between S and T, and takes it within 1 %") {
  const c10::InferenceMode inference;
  const WithoutOneDnn tensors_alone;
  at::set_num_threads(1);
  Case c{
      .model = small_model("llama", false), .bfloat16 = GENERATE(false, true), .recompute = Recompute::none};
  c.model.vocab = GENERATE(101, 3000);
  c.model.logit_softcap = GENERATE(0.0, 30.0);
  // With smoothed labels the slices exchange one more number per row.
  const auto terms =
      GENERATE(nn::LossTerms{}, nn::LossTerms{.label_smoothing = 0.1}, nn::LossTerms{.z = 0.1});
  constexpr int parts = 3;
  const auto data = random_microbatch(c.model, 5, 13, 1);
  const int64_t tokens = 65;
  for (int index = 0; index < parts; ++index) {
    INFO("bfloat16 " << c.bfloat16 << " vocabulary " << c.model.vocab << " cap " << c.model.logit_softcap
                     << " smoothing " << terms.label_smoothing << " z " << terms.z << " part " << index);
    models::TransformerStage stage(c.model,
                                   {.index = index, .first_layer = 0, .end_layer = 1, .head_parts = parts});
    stage.materialise(at::kCPU, c.dtype());
    stage.add_to_loss(terms);
    const app::StageFootprint predicted = c.predicted(stage, 5, 13, /*overlap=*/false, terms);
    const Tensor h = at::zeros({tokens, c.model.hidden}, c.dtype());
    AllocationCounter counter;
    Tensor own = stage.head_forward(0, data, h.clone());
    CHECK(stage.head_bytes() == predicted.head);
    CHECK(close(predicted.passes.head_forward.workspace, counter.peak() - predicted.head, tokens));
    const Tensor all = own.unsqueeze(0).expand({parts, -1, -1}).contiguous();
    own.reset();
    counter.restart();
    const Tensor term = stage.head_backward(0, data, all, /*with_gradients=*/true);
    const int64_t given = static_cast<int64_t>(all.nbytes());
    CHECK(close(predicted.passes.head_backward.workspace, counter.peak() - predicted.head - given, tokens));
    CHECK(stage.head_bytes() == 0);
  }
}

TEST_CASE("what F, B, I and W take beside that is as predicted, within 1 %") {
  const c10::InferenceMode inference;
  const WithoutOneDnn tensors_alone;
  at::set_num_threads(1);
  Case c = any_case();
  // A dominant MLP, and one small enough that attention counts.
  c.model.intermediate = GENERATE(150, 24);
  if (c.bfloat16 && GENERATE(false, true)) multiply_in_fp8(c.model);
  Stages stages = c.stages();
  const auto data = random_microbatch(c.model, 5, 13, 1);
  const int64_t tokens = 65;
  const Tensor boundary = at::zeros({tokens, c.model.hidden}, c.dtype());
  for (auto& stage : stages) {
    INFO(c.model.arch << " bfloat16 " << c.bfloat16 << " bias " << c.model.attention_bias << " recompute "
                      << static_cast<int>(c.recompute) << " targets "
                      << c.model.lora.rank * c.model.lora.targets.size() << " inner " << c.model.intermediate
                      << " fp8 " << c.model.fp8 << " stage " << stage->index());
    const app::StageFootprint predicted = c.predicted(*stage, 5, 13);
    AllocationCounter counter;
    const auto taken = [&](auto&& pass, int64_t records) {
      counter.restart();
      pass();
      return counter.peak() - records;
    };
    const auto forward = [&] {
      stage->forward(0, data, stage->is_first() ? Tensor() : boundary.clone());
      stage->take_loss();
    };
    const auto dy = [&] { return stage->is_last() ? Tensor() : boundary.clone(); };
    const int64_t f = taken(forward, predicted.activation);
    const int64_t b = taken([&] { stage->backward(0, dy()); }, predicted.activation);
    forward();
    nn::SideStream side;
    stage->overlap_weight_gradients(side);
    const int64_t beside = taken([&] { stage->backward(0, dy()); }, predicted.activation);
    forward();
    const int64_t i = taken([&] { stage->backward_input(0, dy()); }, predicted.activation);
    const int64_t w = taken([&] { stage->backward_weight(0); }, predicted.weight_operands);
    const auto check = [&](const char* pass, const app::PassFootprint& expected, int64_t measured) {
      INFO(pass << ": " << expected.workspace << " predicted, " << measured << " measured");
      CHECK(close(expected.workspace, measured, tokens));
    };
    check("F", predicted.passes.forward, f);
    check("B", predicted.passes.backward, b);
    check("B beside", c.predicted(*stage, 5, 13, /*overlap=*/true).passes.backward, beside);
    check("I", predicted.passes.backward_input, i);
    check("W", predicted.passes.backward_weight, w);
  }
}

TEST_CASE("on a GPU passes also take what its libraries take") {
  models::ModelConfig model = small_model("llama", false);
  model.heads = model.kv_heads = 8;
  model.head_dim = 64;
  const models::StageSlice middle{.first_layer = 0, .end_layer = 2, .embedding = false, .head = false};
  const auto footprint = [&](kernels::GpuKind gpu, bool overlap = false) {
    return app::dry_run(model, middle,
                        {.documents = 1,
                         .length = 2048,
                         .device = gpu.is_gpu() ? at::kCUDA : at::kCPU,
                         .gpu = gpu,
                         .overlap = overlap});
  };
  const int64_t product = int64_t{32} << 20;
  using Passes = schedule::PerPass<app::PassFootprint>;
  const app::StageFootprint cpu = footprint({}), ampere = footprint({80, 108}), hopper = footprint({90, 132});
  for (const auto* gpu : {&ampere, &hopper}) {
    CHECK(gpu->activation == cpu.activation);
    CHECK(gpu->weight_operands == cpu.weight_operands);
    for (const auto pass : {&Passes::forward, &Passes::backward_weight}) {
      CHECK((gpu->passes.*pass).workspace >= product);
      CHECK((gpu->passes.*pass).workspace <= (cpu.passes.*pass).workspace + product);
    }
  }
  for (const auto pass : {&Passes::backward, &Passes::backward_input}) {
    // FlashAttention-2 has one sum of dq for every 8 multiprocessors: 14, or 25.
    CHECK((footprint({80, 200}).passes.*pass).workspace - (ampere.passes.*pass).workspace ==
          int64_t{11} * 2048 * 8 * 64 * 4);
    // cuDNN holds the gradient of the scores.
    const int64_t scores = int64_t{8} * 2048 * 2048 * 2 + 2048 * 8 * 4;
    CHECK((hopper.passes.*pass).workspace > scores);
    CHECK((hopper.passes.*pass).workspace <= scores + (cpu.passes.*pass).workspace);
  }
  // Overlapped weight gradients have scratch memory of their own.
  const int64_t beside = footprint({90, 132}, true).passes.backward.workspace;
  CHECK(beside >= hopper.passes.backward.workspace + product);
  CHECK(beside <= int64_t{8} * 2048 * 2048 * 2 + 2048 * 8 * 4 + product +
                      footprint({}, true).passes.backward.workspace);
}

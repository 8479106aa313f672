#include "test/models/model_support.h"

#include <ATen/Functions.h>

#include <cstdint>

#include "parallel/pipeline/split_layers.h"
#include "test/support/catch.h"

namespace pptrain::test {
namespace {

// Norm weights and biases start as ones and zeros, which would hide mistakes. Each is moved by a pattern of its own size
// that is the same on every layout.
void move_vectors(nn::ParameterStore& store) {
  for (nn::Parameter& parameter : store.parameters()) {
    if (parameter.master.dim() != 1) continue;
    parameter.master.add_(at::arange(parameter.master.numel(), at::kFloat).mul_(0.7).sin_().mul_(0.3));
  }
  store.refresh_compute();
}

}  // namespace

models::ModelConfig small_model(const std::string& arch, bool tied) {
  return {.arch = arch,
          .layers = 4,
          .hidden = 40,
          .intermediate = 56,
          .heads = 6,
          .kv_heads = 2,
          .head_dim = 8,
          .vocab = 67,
          .max_seq = 64,
          .rope_theta = 1000,
          .rope_llama3 = {},
          .rope_linear = {},
          .norm_eps = 1e-5,
          .initializer_range = 0.1,
          .tied = tied,
          .attention_bias = true,
          .mlp_bias = arch == "llama"};
}

std::vector<data::Microbatch> random_microbatches(const models::ModelConfig& model, int count) {
  at::manual_seed(11);
  std::vector<data::Microbatch> microbatches;
  for (int i = 0; i < count; ++i) {
    const int64_t batch = 2 + i % 2;
    const int64_t seq = 19 - 2 * i;
    const at::Tensor labels = at::randint(model.vocab, {batch, seq}, at::kLong);
    labels.masked_fill_(at::rand({batch, seq}) < 0.2, data::ignore_label);
    const at::Tensor starts = at::arange(batch, at::kInt).mul_(5).unsqueeze(1);
    microbatches.push_back({.tokens = at::randint(model.vocab, {batch, seq}, at::kLong),
                            .labels = labels,
                            .positions = at::arange(seq, at::kInt).unsqueeze(0).add(starts),
                            .batch = batch,
                            .seq = seq});
  }
  return microbatches;
}

Stages build_stages(const models::ModelConfig& model, int stages, at::ScalarType type) {
  const auto assignment = pipeline::compute_layer_assignment(static_cast<int>(model.layers), stages);
  Stages result;
  for (int i = 0; i < stages; ++i) {
    result.push_back(std::make_unique<models::TransformerStage>(model, models::stage_slice(assignment, i)));
    result.back()->materialise(at::kCPU, type);
    result.back()->parameters().initialise(5);
    move_vectors(result.back()->parameters());
  }
  return result;
}

void forward(Stages& stages, int microbatch, const data::Microbatch& data) {
  at::Tensor x;
  for (auto& stage : stages) {
    CHECK(x.defined() == !stage->is_first());
    x = stage->forward(microbatch, data, std::move(x));
    CHECK(x.defined() == !stage->is_last());
    if (!x.defined()) continue;
    CHECK(x.sizes() == at::IntArrayRef{data.batch * data.seq, stage->hidden()});
    CHECK(x.scalar_type() == stage->boundary_dtype());
  }
}

void backward(Stages& stages, int microbatch, Backward how) {
  at::Tensor dy;
  for (size_t i = stages.size(); i-- > 0;) {
    models::TransformerStage& stage = *stages[i];
    dy = how == Backward::whole ? stage.backward(microbatch, std::move(dy))
                                : stage.backward_input(microbatch, std::move(dy));
    CHECK(dy.defined() == !stage.is_first());
    CHECK(stage.pending_weight_gradients() == (how == Backward::split ? 1 : 0));
  }
  if (how == Backward::whole) return;
  for (auto& stage : stages) stage->backward_weight(microbatch);
}

std::map<std::string, at::Tensor> gradients(Stages& stages) {
  std::map<std::string, at::Tensor> result;
  for (auto& stage : stages) {
    for (const nn::Parameter& parameter : stage->parameters().parameters()) {
      CHECK(result.emplace(parameter.spec.name, parameter.grad).second);
    }
  }
  return result;
}

}  // namespace pptrain::test

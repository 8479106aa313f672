// Tiny models with odd sizes, and microbatches for them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/data/microbatch.h"
#include "models/transformer_stage.h"
#include "test/support/ops.h"
#include "test/support/seed.h"

namespace pptrain::test {

// The message of the exception that it throws.
inline std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

inline const std::vector<std::string> families = {
    "qwen2", "mistral",  "gemma2",    "gemma3_text", "olmo2",       "phi3",        "smollm3",   "granite",
    "gpt2",  "gpt_neox", "qwen2_moe", "gpt_oss",     "deepseek_v2", "deepseek_v3", "starcoder2"};

// Sets the family's own settings, in addition to its architecture's.
inline void set_family(models::ModelConfig& model) {
  const std::string& arch = model.arch;
  if (std::ranges::find(families, arch) == families.end()) return;
  const bool windows = arch == "qwen2" || arch == "mistral" || arch == "phi3" || arch == "gpt_oss" ||
                       arch == "starcoder2" || arch.starts_with("gemma");
  model.layer_kinds.resize(static_cast<size_t>(model.layers));
  for (size_t i = 0; i < model.layer_kinds.size(); ++i) {
    const bool odd = i % 2 == 1;
    if (windows && (odd || arch == "mistral")) model.layer_kinds[i].window = 5;
    if (arch == "gemma3_text" && odd) model.layer_kinds[i].rope = 1;
    if (arch == "gpt2" || (arch == "smollm3" && odd)) model.layer_kinds[i].rope = -1;
  }
  if (arch == "gemma3_text") model.local_rope_theta = 500;
  if (arch == "gpt2") model.max_positions = model.max_seq;
  if (arch == "phi3" || arch == "gpt_neox") model.rotary_dim = 4;
  if (arch == "gemma2") model.attention_softcap = 2;
  if (arch.starts_with("gemma")) model.logit_softcap = 3;
  if (arch.starts_with("gemma") || arch == "granite") model.embedding_scale = 3;
  if (arch == "granite") {
    model.attention_scale = 0.3;
    model.residual_scale = 0.4;
    model.logit_scale = 0.7;
  }
  model.parallel_residual = arch == "gpt_neox";
  if (arch.starts_with("deepseek")) {
    model.q_rank = arch == "deepseek_v3" ? 20 : 0;
    model.kv_rank = 12;
    model.nope_dim = 6;
    model.rope_dim = 4;
    model.v_dim = 8;
    model.head_dim = 10;
    model.rotary_dim = 4;
    model.kv_heads = model.heads;
    const bool sigmoid = arch == "deepseek_v3";
    model.sparse = {{.hidden = model.hidden,
                     .experts = 6,
                     .chosen = 2,
                     .intermediate = 24,
                     .sigmoid = sigmoid,
                     .normalise = sigmoid,
                     .scale = 1.5,
                     .groups = 3,
                     .chosen_groups = 2,
                     .shared = 20,
                     .init_std = model.initializer_range,
                     .balance_bias = sigmoid},
                    /*step=*/1,
                    /*dense=*/{0}};
  }
}

inline models::ModelConfig small_model(const std::string& arch, bool tied, int64_t layers = 4) {
  models::ModelConfig model;
  model.arch = arch;
  model.layers = layers;
  model.hidden = 40;
  model.intermediate = 56;
  model.heads = 3;
  model.kv_heads = 1;
  model.head_dim = 16;  // 3 * 16 is not 40
  model.vocab = 61;
  model.max_seq = 16;
  model.norm_eps = 1e-5;
  model.initializer_range = 0.1;
  model.tied = tied;
  model.attention_bias = true;
  model.mlp_bias = arch == "llama";
  if (arch == "qwen3_moe" || arch == "mixtral" || arch == "qwen2_moe" || arch == "gpt_oss") {
    model.sparse = {{.hidden = model.hidden,
                     .experts = 6,
                     .chosen = 2,
                     .intermediate = 24,
                     .normalise = arch == "mixtral",
                     .limit = arch == "gpt_oss" ? 1.5 : 0.0,
                     .shared = arch == "qwen2_moe" ? 20 : 0,
                     .gated_shared = arch == "qwen2_moe",
                     .init_std = model.initializer_range,
                     .balance_loss = 0.1,
                     .z_loss = 0.01},
                    /*step=*/1,
                    /*dense=*/{1}};  // dense among sparse
  }
  set_family(model);
  if (arch == "llama")
    model.rope_scaling = {
        .rope_type = config::RopeType::llama3, .factor = 4, .original_max_position_embeddings = 8};
  return model;
}

using Stages = std::vector<std::unique_ptr<models::TransformerStage>>;

// One stage per entry of `layers_per_stage`. Norms, biases and other weights that start at zero get random
// values too, since ones and zeros hide errors.
inline Stages build_stages(const models::ModelConfig& model, const std::vector<int64_t>& layers_per_stage,
                           at::ScalarType dtype, uint64_t seed = 7,
                           config::Recompute recompute = config::Recompute::none,
                           const models::StageParallelism& parallelism = {}, at::Device device = at::kCPU) {
  const auto assignment = pipeline::explicit_layer_assignment(
      static_cast<int>(model.layers), static_cast<int>(layers_per_stage.size()), layers_per_stage);
  Stages stages;
  for (size_t i = 0; i < assignment.size(); ++i) {
    auto& stage = *stages.emplace_back(std::make_unique<models::TransformerStage>(
        model, models::stage_slice(assignment, static_cast<int>(i)), parallelism));
    stage.recompute_by_microbatch({recompute});
    stage.materialise(device, dtype);
    stage.parameters().initialise(seed);
    for (nn::Slice* slice : stage.parameters().slices()) {
      if (const nn::Role role = slice->spec.role; role != nn::Role::norm && role != nn::Role::bias &&
                                                  role != nn::Role::balance && slice->spec.init_std != 0)
        continue;
      nn::ParameterSpec noise = slice->spec;
      noise.role = nn::Role::matrix;  // starts at random values
      noise.init_std = 0.2;
      at::Tensor values = at::empty_like(slice->values(), at::kFloat);
      nn::fill_initial_values(noise, slice->shape, seed, values);
      slice->values().add_(values);
    }
    stage.parameters().refresh_compute();
  }
  return stages;
}

// Documents of these lengths in one list. If `late` is given, the positions of that document end at the end
// of the rotary tables, as for a divided document.
inline data::Microbatch random_documents(const models::ModelConfig& model,
                                         const std::vector<int64_t>& lengths, int seed,
                                         std::optional<size_t> late = std::nullopt) {
  at::manual_seed(test::seed(static_cast<uint32_t>(seed)));
  std::vector<int32_t> starts{0};
  std::vector<at::Tensor> positions;
  for (size_t i = 0; i < lengths.size(); ++i) {
    starts.push_back(starts.back() + static_cast<int32_t>(lengths[i]));
    const int64_t first = i == late ? model.max_seq - lengths[i] : 0;
    positions.push_back(at::arange(first, first + lengths[i], at::kInt));
  }
  const int64_t tokens = starts.back();
  data::Microbatch data{.tokens = at::randint(model.vocab, {tokens}, at::kLong),
                        .labels = at::randint(model.vocab, {tokens}, at::kLong),
                        .positions = test::cat(positions),
                        .segments = tokens::make_segments(starts, at::kCPU),
                        .targets = tokens - static_cast<int64_t>(lengths.size()),
                        .global_tokens = tokens,
                        .global_targets = tokens - static_cast<int64_t>(lengths.size())};
  // One label of each document does not count.
  for (size_t i = 0; i < lengths.size(); ++i) data.labels[starts[i] + lengths[i] / 2] = data::ignore_label;
  return data;
}

inline data::Microbatch random_microbatch(const models::ModelConfig& model, int64_t batch, int64_t seq,
                                          int seed) {
  return random_documents(model, std::vector<int64_t>(static_cast<size_t>(batch), seq), seed,
                          batch > 1 ? std::optional<size_t>(1) : std::nullopt);
}

}  // namespace pptrain::test

#include "models/model_config.h"

#include <spdlog/fmt/fmt.h>

#include <utility>

#include "core/base/error.h"
#include "models/registry.h"

namespace pptrain::models {
namespace {

void set_rope_scaling(const config::RopeScaling& scaling, ModelConfig& model) {
  if (scaling.rope_type == "default") return;
  if (scaling.rope_type == "linear") {
    model.rope_linear = nn::LinearRopeScaling{.factor = scaling.factor};
  } else if (scaling.rope_type == "llama3") {
    model.rope_llama3 =
        nn::Llama3RopeScaling{.factor = scaling.factor,
                              .low_freq_factor = scaling.low_freq_factor,
                              .high_freq_factor = scaling.high_freq_factor,
                              .original_max_position_embeddings = scaling.original_max_position_embeddings};
  } else {
    throw UsageError(
        fmt::format("model.rope_scaling.rope_type: \"{}\" is not known; valid are \"default\", "
                    "\"linear\" and \"llama3\"",
                    scaling.rope_type));
  }
}

void check(const ModelConfig& model) {
  const std::pair<const char*, int64_t> sizes[] = {{"num_hidden_layers", model.layers},
                                                   {"hidden_size", model.hidden},
                                                   {"intermediate_size", model.intermediate},
                                                   {"num_attention_heads", model.heads},
                                                   {"num_key_value_heads", model.kv_heads},
                                                   {"head_dim", model.head_dim},
                                                   {"vocab_size", model.vocab}};
  for (const auto& [key, value] : sizes) {
    if (value < 1) {
      throw UsageError(
          fmt::format("model.{}: {} is not a size; set it, or take it from a Hugging Face directory "
                      "with model.hf_dir",
                      key, value));
    }
  }
  if (model.heads % model.kv_heads != 0) {
    throw UsageError(
        fmt::format("model.num_key_value_heads: {} does not divide model.num_attention_heads = {}",
                    model.kv_heads, model.heads));
  }
  if (model.head_dim % 2 != 0) {
    throw UsageError(
        fmt::format("model.head_dim: {} is odd, but rotary embedding turns pairs", model.head_dim));
  }
}

}  // namespace

Recompute make_recompute(const std::string& name) {
  if (name == "none") return Recompute::none;
  if (name == "selective") return Recompute::selective;
  if (name == "full") return Recompute::full;
  throw UsageError(fmt::format(
      "train.recompute: \"{}\" is not known; valid are \"none\", \"selective\" and \"full\"", name));
}

ModelConfig make_model_config(const config::ModelSection& section, int64_t seq_len) {
  ModelConfig model{
      .arch = section.arch,
      .layers = section.num_hidden_layers,
      .hidden = section.hidden_size,
      .intermediate = section.intermediate_size,
      .heads = section.num_attention_heads,
      .kv_heads = section.num_key_value_heads > 0 ? section.num_key_value_heads : section.num_attention_heads,
      .head_dim = section.head_dim,
      .vocab = section.vocab_size,
      .max_seq = seq_len,
      .rope_theta = section.rope_theta,
      .rope_llama3 = {},
      .rope_linear = {},
      .norm_eps = section.rms_norm_eps,
      .initializer_range = section.initializer_range,
      .tied = section.tie_word_embeddings,
      .attention_bias = section.attention_bias,
      .mlp_bias = section.mlp_bias,
  };
  if (model.head_dim == 0 && model.heads > 0) {
    if (model.hidden % model.heads != 0) {
      throw UsageError(
          fmt::format("model.num_attention_heads: {} does not divide model.hidden_size = {}; set "
                      "model.head_dim",
                      model.heads, model.hidden));
    }
    model.head_dim = model.hidden / model.heads;
  }
  set_rope_scaling(section.rope_scaling, model);
  check(model);
  find_architecture(model.arch).check(model);
  if (seq_len < 1) throw UsageError(fmt::format("train.seq_len: {} is not a length", seq_len));
  if (section.max_position_embeddings > 0 && seq_len > section.max_position_embeddings) {
    throw UsageError(fmt::format("train.seq_len: {} is over model.max_position_embeddings = {}", seq_len,
                                 section.max_position_embeddings));
  }
  return model;
}

}  // namespace pptrain::models

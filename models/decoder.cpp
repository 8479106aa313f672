#include "models/decoder.h"

#include <cmath>

#include "models/registry.h"

namespace pptrain::models {
namespace {

nn::AttentionConfig attention_config(const ModelConfig& model, const Decoder& decoder,
                                     const LayerKind& kind) {
  nn::AttentionConfig config{.hidden = model.hidden,
                             .heads = model.heads,
                             .kv_heads = model.kv_heads,
                             .head_dim = model.head_dim,
                             .qkv_bias = model.attention_bias || decoder.qkv_bias,
                             .o_bias = model.attention_bias || decoder.o_bias,
                             .qk_norm = decoder.qk_norm,
                             .qk_norm_kind = decoder.norm,
                             .norm_eps = model.norm_eps,
                             .rope = kind.rope,
                             .rotary_dim = model.rotary_dim,
                             .softcap = model.attention_softcap,
                             .window = kind.window,
                             .sinks = decoder.sinks,
                             .init_std = model.initializer_range,
                             .o_init_std = model.initializer_range};
  if (model.attention_scale > 0) config.scale = model.attention_scale;
  return config;
}

// As transformers: YaRN's mscale_all_dim multiplies queries and keys of all dims.
double latent_scale(const ModelConfig& model) {
  const config::RopeScaling& rope = model.rope_scaling;
  const double scale = 1 / std::sqrt(static_cast<double>(model.head_dim));
  if (rope.rope_type != config::RopeType::yarn || rope.mscale_all_dim == 0 || rope.factor <= 1) return scale;
  const double mscale = 0.1 * rope.mscale_all_dim * std::log(rope.factor) + 1;
  return scale * mscale * mscale;
}

// The norms of narrow rows have transformers' default epsilon, whatever the model's is.
nn::LatentAttentionConfig latent_config(const ModelConfig& model) {
  return {.hidden = model.hidden,
          .heads = model.heads,
          .q_rank = model.q_rank,
          .kv_rank = model.kv_rank,
          .nope_dim = model.nope_dim,
          .rope_dim = model.rope_dim,
          .v_dim = model.v_dim,
          .bias = model.attention_bias,
          .scale = latent_scale(model),
          .init_std = model.initializer_range,
          .o_init_std = model.initializer_range};
}

}  // namespace

BlockConfig block_config(const ModelConfig& model, int64_t layer) {
  const Decoder& decoder = find_architecture(model.arch).decoder;
  BlockConfig config{.attention = attention_config(model, decoder, model.kind(layer)),
                     .intermediate = model.intermediate,
                     .activation = decoder.activation,
                     .gated = decoder.gated,
                     .mlp_bias = model.mlp_bias || decoder.mlp_bias,
                     .norm = decoder.norm,
                     .norms = decoder.norms,
                     .norm_eps = model.norm_eps,
                     .parallel = model.parallel_residual,
                     .residual_scale = model.residual_scale,
                     .init_std = model.initializer_range};
  if (model.kv_rank > 0) config.latent = latent_config(model);
  if (model.sparse.contains(layer)) config.experts = nn::ExpertsConfig(model.sparse);
  return config;
}

nn::EmbeddingConfig embedding_config(const ModelConfig& model) {
  const Decoder& decoder = find_architecture(model.arch).decoder;
  return {.vocab = model.vocab,
          .dim = model.hidden,
          .init_std = model.initializer_range,
          .scale = model.embedding_scale,
          .round_scale = decoder.scaled_embedding,
          .positions = decoder.learned_positions ? model.max_positions : 0};
}

std::vector<nn::RopeConfig> rope_tables(const ModelConfig& model) {
  if (find_architecture(model.arch).decoder.learned_positions) return {};
  const int64_t dim = model.rotary_dim > 0 ? model.rotary_dim : model.head_dim;
  std::vector<nn::RopeConfig> tables = {{.dim = dim,
                                         .theta = model.rope_theta,
                                         .max_positions = model.max_positions,
                                         .scaling = model.rope_scaling}};
  if (model.local_rope_theta > 0) tables.push_back({.dim = dim, .theta = model.local_rope_theta});
  return tables;
}

bool recomputes_keys_at(const ModelConfig& model, int64_t length) {
  return model.rope_scaling.rope_type == config::RopeType::longrope &&
         length == model.rope_scaling.original_max_position_embeddings + 1;
}

}  // namespace pptrain::models

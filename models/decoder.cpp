#include "models/decoder.h"

#include <cmath>

#include "models/registry.h"

namespace pptrain::models {
namespace {

nn::ExpertsConfig experts_config(const ModelConfig& model, const Decoder& decoder) {
  const SparseLayers& sparse = model.sparse;
  return {.hidden = model.hidden,
          .experts = sparse.experts,
          .chosen = sparse.chosen,
          .intermediate = sparse.intermediate,
          .sigmoid = decoder.sigmoid_router,
          .normalise = sparse.normalise,
          .scale = sparse.scale,
          .groups = sparse.groups,
          .chosen_groups = sparse.chosen_groups,
          .limit = sparse.limit,
          .shared = sparse.shared,
          .gated_shared = decoder.gated_shared,
          .init_std = model.initializer_range,
          .balance_loss = sparse.balance_loss,
          .z_loss = sparse.z_loss,
          .balance_bias = decoder.sigmoid_router || sparse.bias_rate > 0};
}

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
  if (model.sparse.contains(layer)) config.experts = experts_config(model, decoder);
  return config;
}

nn::NormKind norm_kind(const ModelConfig& model) {
  return find_architecture(model.arch).decoder.norm;
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
  const config::RopeScaling& scaling = model.rope_scaling;
  const int64_t dim = model.rotary_dim > 0 ? model.rotary_dim : model.head_dim;
  nn::RopeConfig rope{.dim = dim,
                      .theta = model.rope_theta,
                      .type = scaling.rope_type,
                      .factor = scaling.factor,
                      .max_positions = model.max_positions,
                      .original_positions = scaling.original_max_position_embeddings,
                      .low_freq_factor = scaling.low_freq_factor,
                      .high_freq_factor = scaling.high_freq_factor,
                      .beta_fast = scaling.beta_fast,
                      .beta_slow = scaling.beta_slow,
                      .mscale = scaling.mscale,
                      .mscale_all_dim = scaling.mscale_all_dim,
                      .truncate = scaling.truncate,
                      .short_factor = scaling.short_factor,
                      .long_factor = scaling.long_factor};
  if (scaling.attention_factor > 0) rope.attention_factor = scaling.attention_factor;
  std::vector<nn::RopeConfig> tables = {std::move(rope)};
  if (model.local_rope_theta > 0) tables.push_back({.dim = dim, .theta = model.local_rope_theta});
  return tables;
}

}  // namespace pptrain::models

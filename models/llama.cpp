// Llama 2 and 3, dense (Touvron et al., arXiv 2307.09288; Grattafiori et al., arXiv 2407.21783). Its block is
// the one that others change.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "models/hf_config.h"
#include "models/registry.h"

namespace pptrain::models {
namespace {

void read_hf(const HfJson& json, config::ModelSection& model) {
  model.num_key_value_heads = json.size("num_key_value_heads", model.num_attention_heads);
  model.head_dim = json.size("head_dim", std::max<int64_t>(1, model.hidden_size / model.num_attention_heads));
  model.max_position_embeddings = json.size("max_position_embeddings", 2048);
  model.attention_bias = json.flag("attention_bias", false);
  model.mlp_bias = json.flag("mlp_bias", false);
}

void write_hf(const config::ModelSection& model, nlohmann::ordered_json& json) {
  json["attention_bias"] = model.attention_bias;
  json["mlp_bias"] = model.mlp_bias;
}

}  // namespace

BlockConfig llama_block(const ModelConfig& model, int64_t /*layer*/) {
  return {.attention = {.hidden = model.hidden,
                        .heads = model.heads,
                        .kv_heads = model.kv_heads,
                        .head_dim = model.head_dim,
                        .qkv_bias = model.attention_bias,
                        .o_bias = model.attention_bias,
                        .qk_norm = false,
                        .norm_eps = model.norm_eps,
                        .init_std = model.initializer_range,
                        .o_init_std = model.initializer_range},
          .intermediate = model.intermediate,
          .mlp_bias = model.mlp_bias,
          .norm_eps = model.norm_eps,
          .init_std = model.initializer_range};
}

BlockConfig sparse_block(const ModelConfig& model, int64_t layer) {
  BlockConfig config = llama_block(model, layer);
  const SparseLayers& sparse = model.sparse;
  if (!sparse.contains(layer)) return config;
  config.experts = {.hidden = model.hidden,
                    .experts = sparse.experts,
                    .chosen = sparse.chosen,
                    .intermediate = sparse.intermediate,
                    .normalise = sparse.normalise,
                    .init_std = model.initializer_range,
                    .balance_loss = sparse.balance_loss,
                    .z_loss = sparse.z_loss,
                    .balance_bias = sparse.bias_rate > 0};
  return config;
}

constinit const Architecture llama = {.name = "llama",
                                      .hf_model_type = "llama",
                                      .hf_class = "LlamaForCausalLM",
                                      .weights = decoder_weights,
                                      .has_mlp_bias = true,
                                      .block = llama_block,
                                      .read_hf = read_hf,
                                      .write_hf = write_hf};

}  // namespace pptrain::models

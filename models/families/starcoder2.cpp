// StarCoder2 (Lozhkov et al., arXiv 2402.19173): LayerNorms, an MLP of two matrices, biases everywhere, and a
// sliding window in all layers or in none.
#include <nlohmann/json.hpp>

#include "models/hf_config.h"
#include "models/registry.h"

namespace pptrain::models {
namespace {

using M = config::ModelSection;

constexpr WeightName starcoder2_weights[] = {
    {"layers.*.mlp.up", "model.layers.*.mlp.c_fc"},
    {"layers.*.mlp.down", "model.layers.*.mlp.c_proj"},
};
constexpr HfKey starcoder2_keys[] = {
    {"norm_epsilon", &M::rms_norm_eps, 1e-5},
    {"initializer_range", &M::initializer_range, 0.018042},
    {"sliding_window", &M::sliding_window, 0, /*null_is_zero=*/true},
    {"tie_word_embeddings", &M::tie_word_embeddings, true},
};

void read_starcoder2(const HfJson& json, M& /*model*/) {
  if (!json.flag("use_bias", true)) json.fail("use_bias", "only true is supported");
  json.refuse_dropout({"residual_dropout", "embedding_dropout"});
}

void write_starcoder2(const M& /*model*/, nlohmann::ordered_json& json) {
  json["use_bias"] = true;
  for (const char* key : {"residual_dropout", "embedding_dropout"}) json[key] = 0.0;
}

}  // namespace

constinit const Architecture starcoder2 = {.name = "starcoder2",
                                           .hf_class = "Starcoder2ForCausalLM",
                                           .weights = starcoder2_weights,
                                           .decoder = {.norm = nn::NormKind::layer,
                                                       .activation = nn::Activation::gelu_tanh,
                                                       .gated = false,
                                                       .qkv_bias = true,
                                                       .o_bias = true,
                                                       .mlp_bias = true},
                                           .has_attention_bias = false,
                                           .has_window = true,
                                           .hf_keys = starcoder2_keys,
                                           .hf_kv_heads = 2,
                                           .hf_max_positions = 4096,
                                           .read_hf = read_starcoder2,
                                           .write_hf = write_starcoder2};

}  // namespace pptrain::models

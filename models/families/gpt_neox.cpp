// GPT-NeoX (Black et al., arXiv 2204.06745) and Pythia: LayerNorms, attention and MLP on the same residual
// stream, rotary embeddings on a part of each head. One tensor has q, k and v, head by head.
#include <nlohmann/json.hpp>

#include "models/hf_config.h"
#include "models/registry.h"

namespace pptrain::models {
namespace {

using M = config::ModelSection;

constexpr WeightName gpt_neox_weights[] = {
    {"embed", "gpt_neox.embed_in"},
    {"norm", "gpt_neox.final_layer_norm"},
    {"head", "embed_out"},
    {"head", "lm_head"},
    {"layers.*.attn_norm", "gpt_neox.layers.*.input_layernorm"},
    {"layers.*.attn.q", "gpt_neox.layers.*.attention.query_key_value", Rows::of_head},
    {"layers.*.attn.k", "gpt_neox.layers.*.attention.query_key_value", Rows::of_head},
    {"layers.*.attn.v", "gpt_neox.layers.*.attention.query_key_value", Rows::of_head},
    {"layers.*.attn.o", "gpt_neox.layers.*.attention.dense"},
    {"layers.*.mlp_norm", "gpt_neox.layers.*.post_attention_layernorm"},
    {"layers.*.mlp.up", "gpt_neox.layers.*.mlp.dense_h_to_4h"},
    {"layers.*.mlp.down", "gpt_neox.layers.*.mlp.dense_4h_to_h"},
};
constexpr HfKey gpt_neox_keys[] = {
    {"layer_norm_eps", &M::rms_norm_eps, 1e-5},
    {"attention_bias", &M::attention_bias, true},
    {"use_parallel_residual", &M::use_parallel_residual, true},
};

void read_gpt_neox(const HfJson& json, M& /*model*/) {
  json.refuse_dropout({"hidden_dropout"});
}

void write_gpt_neox(const M& /*model*/, nlohmann::ordered_json& json) {
  for (const char* key : {"head_dim", "num_key_value_heads"}) json.erase(key);
  json["hidden_dropout"] = 0.0;
}

}  // namespace

constinit const Architecture gpt_neox = {
    .name = "gpt_neox",
    .hf_class = "GPTNeoXForCausalLM",
    .other_names = "pythia",
    .weights = gpt_neox_weights,
    .decoder = {.norm = nn::NormKind::layer,
                .activation = nn::Activation::gelu,
                .gated = false,
                .mlp_bias = true},
    .plain_heads = true,
    .has_partial_rotation = true,
    .hf_keys = gpt_neox_keys,
    .hf_max_positions = 2048,
    .hf_rope = {.theta_key = "rotary_emb_base", .part = 0.25, .part_key = "rotary_pct"},
    .read_hf = read_gpt_neox,
    .write_hf = write_gpt_neox};

}  // namespace pptrain::models

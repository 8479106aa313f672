// GPT-2 (Radford et al., 2019): LayerNorms, learned positions, biases and an MLP without a gate. Its matrices
// are stored [in, out], q, k and v in one.
#include <nlohmann/json.hpp>

#include "models/hf_config.h"
#include "models/registry.h"

namespace pptrain::models {
namespace {

using M = config::ModelSection;
constexpr Rows of_parameter = Rows::of_parameter;

constexpr WeightName gpt2_weights[] = {
    {"embed", "transformer.wte"},
    {"embed_positions", "transformer.wpe"},
    {"norm", "transformer.ln_f"},
    {"head", "lm_head"},
    {"layers.*.attn_norm", "transformer.h.*.ln_1"},
    {"layers.*.attn.q", "transformer.h.*.attn.c_attn", of_parameter, /*transposed=*/true},
    {"layers.*.attn.k", "transformer.h.*.attn.c_attn", of_parameter, /*transposed=*/true},
    {"layers.*.attn.v", "transformer.h.*.attn.c_attn", of_parameter, /*transposed=*/true},
    {"layers.*.attn.o", "transformer.h.*.attn.c_proj", of_parameter, /*transposed=*/true},
    {"layers.*.mlp_norm", "transformer.h.*.ln_2"},
    {"layers.*.mlp.up", "transformer.h.*.mlp.c_fc", of_parameter, /*transposed=*/true},
    {"layers.*.mlp.down", "transformer.h.*.mlp.c_proj", of_parameter, /*transposed=*/true},
};
constexpr HfKey gpt2_keys[] = {
    {"n_embd", &M::hidden_size, -1},
    {"n_layer", &M::num_hidden_layers, -1},
    {"n_head", &M::num_attention_heads, -1},
    {"n_inner", &M::intermediate_size, 0, /*null_is_zero=*/true},
    {"n_positions", &M::max_position_embeddings, 1024},
    {"layer_norm_epsilon", &M::rms_norm_eps, 1e-5},
    {"tie_word_embeddings", &M::tie_word_embeddings, true},
};

// Dropout acts in transformers' training alone, whose default is 0.1; pptrain trains without.
void read_gpt2(const HfJson& json, M& model) {
  if (model.intermediate_size == 0) model.intermediate_size = 4 * model.hidden_size;
  if (!json.flag("scale_attn_weights", true)) json.fail("scale_attn_weights", "only true is supported");
  for (const char* key : {"scale_attn_by_inverse_layer_idx", "add_cross_attention"})
    if (json.flag(key, false)) json.fail(key, "only false is supported");
}

void write_gpt2(const M& /*model*/, nlohmann::ordered_json& json) {
  for (const char* key :
       {"attention_dropout", "head_dim", "num_key_value_heads", "rope_scaling", "rope_theta"})
    json.erase(key);
  json["attn_pdrop"] = json["embd_pdrop"] = json["resid_pdrop"] = 0.0;
}

}  // namespace

constinit const Architecture gpt2 = {.name = "gpt2",
                                     .hf_class = "GPT2LMHeadModel",
                                     .weights = gpt2_weights,
                                     .decoder = {.norm = nn::NormKind::layer,
                                                 .activation = nn::Activation::gelu_tanh,
                                                 .gated = false,
                                                 .qkv_bias = true,
                                                 .o_bias = true,
                                                 .mlp_bias = true,
                                                 .learned_positions = true},
                                     .has_attention_bias = false,
                                     .plain_heads = true,
                                     .hf_keys = gpt2_keys,
                                     .hf_activation_key = "activation_function",
                                     .hf_activation = "gelu_new",
                                     .read_hf = read_gpt2,
                                     .write_hf = write_gpt2};

}  // namespace pptrain::models

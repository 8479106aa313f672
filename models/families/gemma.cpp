// Gemma 2 (Gemma Team, arXiv 2408.00118) and the text models of Gemma 3 (arXiv 2503.19786). Both have a norm
// before and one after attention and MLP, each with the factor 1 + weight, GeGLU, embeddings scaled by the
// root of the width, and windows in most layers. Gemma 2 bounds scores and logits; Gemma 3 has norms on q and
// k, and rotary frequencies of their own in layers with a window.
#include <nlohmann/json.hpp>

#include "models/hf_config.h"
#include "models/registry.h"

namespace pptrain::models {
namespace {

using M = config::ModelSection;

constexpr WeightName gemma_weights[] = {
    {"layers.*.attn_post_norm", "model.layers.*.post_attention_layernorm"},
    {"layers.*.mlp_norm", "model.layers.*.pre_feedforward_layernorm"},
    {"layers.*.mlp_post_norm", "model.layers.*.post_feedforward_layernorm"},
};
constexpr HfKey gemma2_keys[] = {
    {"query_pre_attn_scalar", &M::query_pre_attn_scalar, 256},
    {"sliding_window", &M::sliding_window, 4096, /*null_is_zero=*/true},
    {"attn_logit_softcapping", &M::attn_logit_softcapping, 50, /*null_is_zero=*/true},
    {"final_logit_softcapping", &M::final_logit_softcapping, 30, /*null_is_zero=*/true},
    {"tie_word_embeddings", &M::tie_word_embeddings, true},
};
constexpr HfKey gemma3_keys[] = {
    {"query_pre_attn_scalar", &M::query_pre_attn_scalar, 256},
    {"sliding_window", &M::sliding_window, 4096},
    {"final_logit_softcapping", &M::final_logit_softcapping, 0, /*null_is_zero=*/true},
    {"tie_word_embeddings", &M::tie_word_embeddings, true},
};

constexpr Decoder gemma2_decoder = {.norm = nn::NormKind::rms_plus_one,
                                    .norms = NormPlaces::both,
                                    .activation = nn::Activation::gelu_tanh,
                                    .scaled_embedding = true,
                                    .full_attention_every = 2};
constexpr Decoder gemma3_decoder = {.norm = nn::NormKind::rms_plus_one,
                                    .norms = NormPlaces::both,
                                    .qk_norm = nn::QkNorm::head,
                                    .activation = nn::Activation::gelu_tanh,
                                    .scaled_embedding = true,
                                    .full_attention_every = 6};

void read_gemma2(const HfJson& json, M& model) {
  if (json.flag("use_bidirectional_attention", false))
    json.fail("use_bidirectional_attention", "only causal attention is supported");
  if (model.sliding_window > 0) model.layer_types = json.texts("layer_types", all_layer_types);
}

// Older files say which layers are full by sliding_window_pattern.
void read_gemma3(const HfJson& json, M& model) {
  read_gemma2(json, model);
  if (json.has("attn_logit_softcapping"))
    json.fail("attn_logit_softcapping",
              "Gemma 3 bounds no scores, and transformers reads the key over; set it to null");
  const int64_t period = json.size("sliding_window_pattern", gemma3_decoder.full_attention_every);
  for (int64_t i = std::ssize(model.layer_types); i < model.num_hidden_layers; ++i)
    model.layer_types.emplace_back((i + 1) % period == 0 ? full_attention : sliding_attention);
}

void write_gemma(const M& model, nlohmann::ordered_json& json) {
  json["hidden_act"] = json["hidden_activation"];  // as older versions call it
  json["layer_types"] = layer_types_of(model);
}

}  // namespace

constinit const Architecture gemma2 = {.name = "gemma2",
                                       .hf_class = "Gemma2ForCausalLM",
                                       .weights = gemma_weights,
                                       .decoder = gemma2_decoder,
                                       .heads_divide_width = true,
                                       .has_window = true,
                                       .hf_keys = gemma2_keys,
                                       .read_keys = "layer_types",
                                       .hf_kv_heads = 4,
                                       .hf_head_dim = 256,
                                       .hf_max_positions = 8192,
                                       .hf_activation_key = "hidden_activation",
                                       .read_hf = read_gemma2,
                                       .write_hf = write_gemma};

constinit const Architecture gemma3_text = {.name = "gemma3_text",
                                            .hf_class = "Gemma3ForCausalLM",
                                            .other_names = "gemma3",
                                            .weights = gemma_weights,
                                            .decoder = gemma3_decoder,
                                            .heads_divide_width = true,
                                            .has_window = true,
                                            .has_local_rope = true,
                                            .hf_keys = gemma3_keys,
                                            .read_keys = "layer_types",
                                            .hf_kv_heads = 4,
                                            .hf_head_dim = 256,
                                            .hf_max_positions = 131072,
                                            .hf_rope = {.theta = 1e6},
                                            .hf_activation_key = "hidden_activation",
                                            .read_hf = read_gemma3,
                                            .write_hf = write_gemma};

}  // namespace pptrain::models

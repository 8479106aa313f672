// Global parameter names <-> Hugging Face tensor names.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace pptrain::models {

// A module, which has a weight and may have a bias; '*' stands for the layer's number.
struct WeightName {
  std::string_view global;
  std::string_view hf;
};

// The names of Llama and of the models built like it.
inline constexpr WeightName decoder_weights[] = {
    {"embed", "model.embed_tokens"},
    {"norm", "model.norm"},
    {"head", "lm_head"},
    {"layers.*.attn_norm", "model.layers.*.input_layernorm"},
    {"layers.*.attn.q", "model.layers.*.self_attn.q_proj"},
    {"layers.*.attn.k", "model.layers.*.self_attn.k_proj"},
    {"layers.*.attn.v", "model.layers.*.self_attn.v_proj"},
    {"layers.*.attn.o", "model.layers.*.self_attn.o_proj"},
    {"layers.*.attn.q_norm", "model.layers.*.self_attn.q_norm"},
    {"layers.*.attn.k_norm", "model.layers.*.self_attn.k_norm"},
    {"layers.*.mlp_norm", "model.layers.*.post_attention_layernorm"},
    {"layers.*.mlp.gate", "model.layers.*.mlp.gate_proj"},
    {"layers.*.mlp.up", "model.layers.*.mlp.up_proj"},
    {"layers.*.mlp.down", "model.layers.*.mlp.down_proj"},
};

// "layers.17.attn.q.weight" -> "model.layers.17.self_attn.q_proj.weight". With `tied`, "head.weight" is the
// embedding's tensor. Throws Error for a name that is not in the list.
std::string hf_name(std::span<const WeightName> names, std::string_view global, bool tied);

// The inverse (untied): nothing for a tensor that no parameter takes
// ("model.layers.0.self_attn.rotary_emb.inv_freq").
std::optional<std::string> global_name(std::span<const WeightName> names, std::string_view hf);

}  // namespace pptrain::models

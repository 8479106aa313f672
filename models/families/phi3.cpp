// Phi-3 (Abdin et al., arXiv 2404.14219) and Phi-4-mini (arXiv 2503.01743): Llama's block, whose weights lie
// in fewer tensors, with rotary embeddings on a part of each head and LongRoPE.
#include <nlohmann/json.hpp>

#include "models/hf_config.h"
#include "models/registry.h"

namespace pptrain::models {
namespace {

using M = config::ModelSection;

constexpr WeightName phi3_weights[] = {
    {"layers.*.attn.q", "model.layers.*.self_attn.qkv_proj"},
    {"layers.*.attn.k", "model.layers.*.self_attn.qkv_proj"},
    {"layers.*.attn.v", "model.layers.*.self_attn.qkv_proj"},
    {"layers.*.mlp.gate", "model.layers.*.mlp.gate_up_proj"},
    {"layers.*.mlp.up", "model.layers.*.mlp.gate_up_proj"},
};
constexpr HfKey phi3_keys[] = {
    {"rms_norm_eps", &M::rms_norm_eps, 1e-5},
    {"sliding_window", &M::sliding_window, 0, /*null_is_zero=*/true},
};

void read_phi3(const HfJson& json, M& /*model*/) {
  json.refuse_dropout({"resid_pdrop", "embd_pdrop"});
}

// transformers' default is 4096.
void write_phi3(const M& model, nlohmann::ordered_json& json) {
  if (!json["rope_scaling"].is_null())
    json["original_max_position_embeddings"] = model.rope_scaling.original_max_position_embeddings;
  json["resid_pdrop"] = json["embd_pdrop"] = 0.0;
}

}  // namespace

constinit const Architecture phi3 = {.name = "phi3",
                                     .hf_class = "Phi3ForCausalLM",
                                     .other_names = "phi4",
                                     .weights = phi3_weights,
                                     .has_attention_bias = false,
                                     .has_window = true,
                                     .has_partial_rotation = true,
                                     .hf_keys = phi3_keys,
                                     .hf_max_positions = 4096,
                                     .hf_rope = {.original_positions = 4096, .all_scalings_long = true},
                                     .read_hf = read_phi3,
                                     .write_hf = write_phi3};

}  // namespace pptrain::models

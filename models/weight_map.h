// Global parameter names <-> Hugging Face tensor names.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pptrain::models {

// A module, which has a weight and may have a bias; a '*' stands for a number, of the layer or of an expert.
// A global name may have several Hugging Face names, of which a directory has one.
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

// What sparse layers have beside these. transformers writes Mixtral's with either name.
inline constexpr WeightName qwen3_moe_weights[] = {
    {"layers.*.mlp.router", "model.layers.*.mlp.gate"},
    {"layers.*.mlp.experts.*.gate", "model.layers.*.mlp.experts.*.gate_proj"},
    {"layers.*.mlp.experts.*.up", "model.layers.*.mlp.experts.*.up_proj"},
    {"layers.*.mlp.experts.*.down", "model.layers.*.mlp.experts.*.down_proj"},
};
inline constexpr WeightName mixtral_weights[] = {
    {"layers.*.mlp.router", "model.layers.*.block_sparse_moe.gate"},
    {"layers.*.mlp.router", "model.layers.*.mlp.gate"},
    {"layers.*.mlp.experts.*.gate", "model.layers.*.block_sparse_moe.experts.*.w1"},
    {"layers.*.mlp.experts.*.up", "model.layers.*.block_sparse_moe.experts.*.w3"},
    {"layers.*.mlp.experts.*.down", "model.layers.*.block_sparse_moe.experts.*.w2"},
};

// "layers.17.attn.q.weight" -> "model.layers.17.self_attn.q_proj.weight": among `names`, then among
// decoder_weights. With `tied`, "head.weight" is the embedding's tensor. Throws Error for a name that is not
// in either list.
std::string hf_name(std::span<const WeightName> names, std::string_view global, bool tied);
// All of them, the usual one first.
std::vector<std::string> hf_names(std::span<const WeightName> names, std::string_view global, bool tied);

// The inverse (untied): nothing for a tensor that no parameter takes
// ("model.layers.0.self_attn.rotary_emb.inv_freq").
std::optional<std::string> global_name(std::span<const WeightName> names, std::string_view hf);

// The parameters whose values a Hugging Face tensor holds, each whole, one after the other in row-major
// order: one, or, of a tensor of all `experts`, all of these. None for a tensor that no parameter takes.
std::vector<std::string> parameters_in(std::span<const WeightName> names, std::string_view hf,
                                       int64_t experts);

// An expert's matrix in one tensor of all experts, as transformers holds them: the part-th of `parts` equal
// bands of rows of tensor[expert].
struct FusedExpert {
  std::string hf;  // tensor [experts, parts * rows, columns]
  int64_t expert = 0;
  int64_t part = 0;
  int64_t parts = 1;
};

// Of "layers.3.mlp.experts.7.up.weight"; nothing for a parameter that is no expert's.
std::optional<FusedExpert> fused_expert(std::string_view global);

}  // namespace pptrain::models

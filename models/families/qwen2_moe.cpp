// Qwen1.5-MoE and Qwen2-MoE (Yang et al., arXiv 2407.10671): Qwen2's block with experts in the place of the
// MLP, in all layers or some, and in addition an MLP for every token.
#include <nlohmann/json.hpp>

#include "models/hf_config.h"
#include "models/registry.h"

namespace pptrain::models {
namespace {

using M = config::ModelSection;

constexpr WeightName shared_expert_weights[] = {
    {"layers.*.mlp.shared.gate", "model.layers.*.mlp.shared_expert.gate_proj"},
    {"layers.*.mlp.shared.up", "model.layers.*.mlp.shared_expert.up_proj"},
    {"layers.*.mlp.shared.down", "model.layers.*.mlp.shared_expert.down_proj"},
    {"layers.*.mlp.shared_gate", "model.layers.*.mlp.shared_expert_gate"},
};
constexpr auto qwen2_moe_weights = joined(qwen3_moe_weights, shared_expert_weights);
constexpr HfKey qwen2_moe_keys[] = {
    {"num_experts", &M::num_experts, 60},
    {"num_experts_per_tok", &M::num_experts_per_tok, 4},
    {"moe_intermediate_size", &M::moe_intermediate_size, 1408},
    {"shared_expert_intermediate_size", &M::shared_expert_intermediate_size, 5632},
    {"norm_topk_prob", &M::norm_topk_prob, false},
    {"decoder_sparse_step", &M::decoder_sparse_step, 1},
};

void read_qwen2_moe(const HfJson& json, M& model) {
  if (!json.flag("qkv_bias", true)) json.fail("qkv_bias", "only true is supported");
  model.mlp_only_layers = json.integers("mlp_only_layers");
}

void write_qwen2_moe(const M& model, nlohmann::ordered_json& json) {
  json["use_sliding_window"] = false;
  if (model.intermediate_size == 0) json["intermediate_size"] = model.moe_intermediate_size;  // unused
  json["mlp_only_layers"] = model.mlp_only_layers;
}

}  // namespace

constinit const Architecture qwen2_moe = {.name = "qwen2_moe",
                                          .hf_class = "Qwen2MoeForCausalLM",
                                          .weights = qwen2_moe_weights,
                                          .decoder = {.qkv_bias = true, .gated_shared = true},
                                          .sparse = true,
                                          .has_attention_bias = false,
                                          .hf_keys = qwen2_moe_keys,
                                          .hf_kv_heads = 16,
                                          .hf_max_positions = 32768,
                                          .read_hf = read_qwen2_moe,
                                          .write_hf = write_qwen2_moe};

}  // namespace pptrain::models

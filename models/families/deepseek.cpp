// DeepSeek-V2 (arXiv 2405.04434) and V3 (arXiv 2412.19437): latent attention; in all layers but the first
// ones, experts and an MLP for every token. V3's router takes sigmoids, and a bias takes part in the choice
// of experts.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "models/hf_config.h"
#include "models/registry.h"

namespace pptrain::models {
namespace {

using M = config::ModelSection;

constexpr WeightName own_weights[] = {
    {"layers.*.attn.q_a", "model.layers.*.self_attn.q_a_proj"},
    {"layers.*.attn.q_a_norm", "model.layers.*.self_attn.q_a_layernorm"},
    {"layers.*.attn.q_b", "model.layers.*.self_attn.q_b_proj"},
    {"layers.*.attn.kv_a", "model.layers.*.self_attn.kv_a_proj_with_mqa"},
    {"layers.*.attn.kv_a_norm", "model.layers.*.self_attn.kv_a_layernorm"},
    {"layers.*.attn.kv_b", "model.layers.*.self_attn.kv_b_proj"},
    {"layers.*.mlp.router.bias", "model.layers.*.mlp.gate.e_score_correction_bias"},
    {"layers.*.mlp.shared.gate", "model.layers.*.mlp.shared_experts.gate_proj"},
    {"layers.*.mlp.shared.up", "model.layers.*.mlp.shared_experts.up_proj"},
    {"layers.*.mlp.shared.down", "model.layers.*.mlp.shared_experts.down_proj"},
};
constexpr auto deepseek_weights = joined(own_weights, qwen3_moe_weights);
constexpr HfKey latent_keys[] = {
    {"q_lora_rank", &M::q_lora_rank, 1536, /*null_is_zero=*/true},
    {"kv_lora_rank", &M::kv_lora_rank, 512},
    {"qk_nope_head_dim", &M::qk_nope_head_dim, 128},
    {"qk_rope_head_dim", &M::qk_rope_head_dim, 64},
    {"v_head_dim", &M::v_head_dim, 128},
};
constexpr HfKey v2_own_keys[] = {
    {"n_routed_experts", &M::num_experts, 64},
    {"num_experts_per_tok", &M::num_experts_per_tok, -1},
    {"moe_intermediate_size", &M::moe_intermediate_size, 1407},
    {"routed_scaling_factor", &M::routed_scaling_factor, 1},
};
constexpr auto v2_keys = joined(latent_keys, v2_own_keys);
constexpr HfKey v3_own_keys[] = {
    {"n_routed_experts", &M::num_experts, 256},
    {"num_experts_per_tok", &M::num_experts_per_tok, 8},
    {"moe_intermediate_size", &M::moe_intermediate_size, 2048},
    {"routed_scaling_factor", &M::routed_scaling_factor, 2.5},
    {"norm_topk_prob", &M::norm_topk_prob, true},
    {"n_group", &M::n_group, 8},
    {"topk_group", &M::topk_group, 4},
};
constexpr auto v3_keys = joined(latent_keys, v3_own_keys);

// Every layer from the first sparse one on is sparse; the shared experts are one MLP.
void read_deepseek(const HfJson& json, M& model, int64_t dense, int64_t shared) {
  const int64_t first = json.count("first_k_dense_replace", dense);
  model.mlp_only_layers.resize(static_cast<size_t>(std::min(first, model.num_hidden_layers)));
  std::iota(model.mlp_only_layers.begin(), model.mlp_only_layers.end(), 0);
  model.shared_expert_intermediate_size = json.size("n_shared_experts", shared) * model.moe_intermediate_size;
  model.head_dim = model.qk_nope_head_dim + model.qk_rope_head_dim;
  model.num_key_value_heads = model.num_attention_heads;  // transformers computes with no other number
}

void read_v2(const HfJson& json, M& model) {
  read_deepseek(json, model, 0, 2);
  if (json.flag("norm_topk_prob", false)) json.fail("norm_topk_prob", "only false is supported");
  if (json.flag("mlp_bias", false)) json.fail("mlp_bias", "only false is supported");
  const std::string method = json.text("topk_method", "greedy");
  if (method == "greedy") return;
  if (method != "group_limited_greedy")
    json.fail("topk_method", "only \"greedy\" and \"group_limited_greedy\" are supported");
  model.n_group = json.size("n_group");
  model.topk_group = json.size("topk_group");
}

void read_v3(const HfJson& json, M& model) {
  read_deepseek(json, model, 3, 1);
  if (!json.flag("rope_interleave", true)) json.fail("rope_interleave", "only true is supported");
}

void write_deepseek(const M& model, nlohmann::ordered_json& json) {
  json["first_k_dense_replace"] = model.mlp_only_layers.size();
  json["n_shared_experts"] = model.shared_expert_intermediate_size / model.moe_intermediate_size;
  json["moe_layer_freq"] = 1;                 // other readers than transformers ask for it
  json["head_dim"] = model.qk_rope_head_dim;  // as transformers calls what is rotated
  if (model.intermediate_size == 0) json["intermediate_size"] = model.moe_intermediate_size;  // unused
}

void write_v2(const M& model, nlohmann::ordered_json& json) {
  write_deepseek(model, json);
  json["norm_topk_prob"] = false;
  json["scoring_func"] = "softmax";
  json["topk_method"] = model.n_group > 1 ? "group_limited_greedy" : "greedy";
  json["n_group"] = model.n_group;
  json["topk_group"] = model.topk_group;
}

// Layers for multi-token prediction are not written.
void write_v3(const M& model, nlohmann::ordered_json& json) {
  write_deepseek(model, json);
  // transformers knows no other choice and writes neither; vLLM and SGLang need them.
  json["scoring_func"] = "sigmoid";
  json["topk_method"] = "noaux_tc";
  json["num_nextn_predict_layers"] = 0;
}

}  // namespace

constinit const Architecture deepseek_v2 = {.name = "deepseek_v2",
                                            .hf_class = "DeepseekV2ForCausalLM",
                                            .weights = deepseek_weights,
                                            .decoder = {.latent_attention = true},
                                            .sparse = true,
                                            .heads_divide_width = true,
                                            .hf_keys = v2_keys,
                                            .hf_max_positions = 2048,
                                            .read_hf = read_v2,
                                            .write_hf = write_v2};

constinit const Architecture deepseek_v3 = {.name = "deepseek_v3",
                                            .hf_class = "DeepseekV3ForCausalLM",
                                            .weights = deepseek_weights,
                                            .decoder = {.latent_attention = true, .sigmoid_router = true},
                                            .sparse = true,
                                            .hf_keys = v3_keys,
                                            .hf_max_positions = 4096,
                                            .read_hf = read_v3,
                                            .write_hf = write_v3};

}  // namespace pptrain::models

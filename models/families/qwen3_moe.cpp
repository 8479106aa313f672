// Qwen3-MoE (Yang et al., arXiv 2505.09388): Qwen3's block with experts in the place of the MLP, in all
// layers or some.
#include <nlohmann/json.hpp>

#include "models/hf_config.h"
#include "models/registry.h"

namespace pptrain::models {
namespace {

// transformers reads the number of experts under both names, and takes num_local_experts if both are given.
int64_t number_of_experts(const HfJson& json) {
  return json.size(json.has("num_local_experts") ? "num_local_experts" : "num_experts", 128);
}

void read_qwen3_moe(const HfJson& json, config::ModelSection& model) {
  model.num_experts = number_of_experts(json);
  model.num_experts_per_tok = json.size("num_experts_per_tok", 8);
  model.moe_intermediate_size = json.size("moe_intermediate_size", 768);
  model.norm_topk_prob = json.flag("norm_topk_prob", false);
  model.decoder_sparse_step = json.size("decoder_sparse_step", 1);
  model.mlp_only_layers = json.integers("mlp_only_layers");
}

void write_qwen3_moe(const config::ModelSection& model, nlohmann::ordered_json& json) {
  json["use_sliding_window"] = false;
  if (model.intermediate_size == 0) json["intermediate_size"] = model.moe_intermediate_size;  // unused
  json["num_experts"] = model.num_experts;
  json["num_experts_per_tok"] = model.num_experts_per_tok;
  json["moe_intermediate_size"] = model.moe_intermediate_size;
  json["norm_topk_prob"] = model.norm_topk_prob;
  json["decoder_sparse_step"] = model.decoder_sparse_step;
  json["mlp_only_layers"] = model.mlp_only_layers;
}

}  // namespace

constinit const Architecture qwen3_moe = {.name = "qwen3_moe",
                                          .hf_class = "Qwen3MoeForCausalLM",
                                          .weights = qwen3_moe_weights,
                                          .decoder = {.qk_norm = nn::QkNorm::head},
                                          .sparse = true,
                                          .read_keys = "norm_topk_prob decoder_sparse_step",
                                          .hf_kv_heads = 4,
                                          .hf_max_positions = 32768,
                                          .read_hf = read_qwen3_moe,
                                          .write_hf = write_qwen3_moe};

}  // namespace pptrain::models

// Mixtral (Jiang et al., arXiv 2401.04088): Llama's block with experts in the place of the MLP.
#include <nlohmann/json.hpp>

#include "models/hf_config.h"
#include "models/registry.h"

namespace pptrain::models {
namespace {

// transformers writes the router with either name.
constexpr WeightName mixtral_weights[] = {
    {"layers.*.mlp.router", "model.layers.*.block_sparse_moe.gate"},
    {"layers.*.mlp.router", "model.layers.*.mlp.gate"},
    {"layers.*.mlp.experts.*.gate", "model.layers.*.block_sparse_moe.experts.*.w1"},
    {"layers.*.mlp.experts.*.up", "model.layers.*.block_sparse_moe.experts.*.w3"},
    {"layers.*.mlp.experts.*.down", "model.layers.*.block_sparse_moe.experts.*.w2"},
    {"layers.*.mlp.experts.*.gate.weight", "model.layers.*.mlp.experts.gate_up_proj"},
    {"layers.*.mlp.experts.*.up.weight", "model.layers.*.mlp.experts.gate_up_proj"},
    {"layers.*.mlp.experts.*.down.weight", "model.layers.*.mlp.experts.down_proj"},
};

// transformers reads the number of experts under both names, and takes num_experts if both are given.
void read_mixtral(const HfJson& json, config::ModelSection& model) {
  model.rms_norm_eps = json.number("rms_norm_eps", 1e-5);
  model.num_experts = json.size(json.has("num_experts") ? "num_experts" : "num_local_experts", 8);
  model.num_experts_per_tok = json.size("num_experts_per_tok", 2);
  if (json.has("sliding_window")) json.fail("sliding_window", "sliding-window attention is not supported");
  if (json.number("router_jitter_noise", 0) != 0)
    json.fail("router_jitter_noise", "noise on the router's input is not supported; set it to 0");
}

void write_mixtral(const config::ModelSection& model, nlohmann::ordered_json& json) {
  json["num_local_experts"] = model.num_experts;
  json["num_experts_per_tok"] = model.num_experts_per_tok;
  json["router_jitter_noise"] = 0.0;
  json["sliding_window"] = nullptr;
}

}  // namespace

constinit const Architecture mixtral = {.name = "mixtral",
                                        .hf_class = "MixtralForCausalLM",
                                        .weights = mixtral_weights,
                                        .sparse = true,
                                        .experts_of_mlp_width = true,
                                        .has_attention_bias = false,
                                        .hf_kv_heads = 8,
                                        .hf_max_positions = 131072,
                                        .hf_rope = {.theta = 1e6},
                                        .read_hf = read_mixtral,
                                        .write_hf = write_mixtral};

}  // namespace pptrain::models

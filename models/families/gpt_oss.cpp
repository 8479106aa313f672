// gpt-oss (OpenAI, arXiv 2508.10925): experts with biases and bounded inner values, attention with biases,
// sinks and a sliding window in every second layer. All experts lie in one tensor, [in, out], the rows of
// gate and up in turn.
#include <nlohmann/json.hpp>

#include "models/hf_config.h"
#include "models/registry.h"

namespace pptrain::models {
namespace {

using M = config::ModelSection;

constexpr WeightName gpt_oss_weights[] = {
    {"layers.*.attn.sinks", "model.layers.*.self_attn.sinks"},
    {"layers.*.mlp.router", "model.layers.*.mlp.router"},
    {"layers.*.mlp.router.logits", "model.layers.*.mlp.router"},
    {"layers.*.mlp.experts.*.gate.weight", "model.layers.*.mlp.experts.gate_up_proj", Rows::in_turn, true},
    {"layers.*.mlp.experts.*.up.weight", "model.layers.*.mlp.experts.gate_up_proj", Rows::in_turn, true},
    {"layers.*.mlp.experts.*.down.weight", "model.layers.*.mlp.experts.down_proj", Rows::of_parameter, true},
    {"layers.*.mlp.experts.*.gate.bias", "model.layers.*.mlp.experts.gate_up_proj_bias", Rows::in_turn},
    {"layers.*.mlp.experts.*.up.bias", "model.layers.*.mlp.experts.gate_up_proj_bias", Rows::in_turn},
    {"layers.*.mlp.experts.*.down.bias", "model.layers.*.mlp.experts.down_proj_bias"},
};
constexpr HfKey gpt_oss_keys[] = {
    {"num_local_experts", &M::num_experts, 128},
    {"num_experts_per_tok", &M::num_experts_per_tok, 4},
    {"swiglu_limit", &M::swiglu_limit, 7},
    {"sliding_window", &M::sliding_window, 128, /*null_is_zero=*/true},
    {"rms_norm_eps", &M::rms_norm_eps, 1e-5},
    {"attention_bias", &M::attention_bias, true},
};

// transformers' default rotary settings are a complete YaRN, but no released file relies on them.
void read_gpt_oss(const HfJson& json, M& model) {
  if (json.number("swiglu_alpha", 1.702) != 1.702) json.fail("swiglu_alpha", "only 1.702 is supported");
  if (!json.is_filled("rope_parameters") && !json.is_filled("rope_scaling"))
    json.fail("rope_parameters", "is missing");
  if (model.sliding_window > 0) model.layer_types = json.texts("layer_types", all_layer_types);
}

void write_gpt_oss(const M& model, nlohmann::ordered_json& json) {
  json["layer_types"] = layer_types_of(model);
  if (model.rope_scaling.rope_type == config::RopeType::none)
    json["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", model.rope_theta}};
}

}  // namespace

constinit const Architecture gpt_oss = {.name = "gpt_oss",
                                        .hf_class = "GptOssForCausalLM",
                                        .weights = gpt_oss_weights,
                                        .decoder = {.sinks = true, .full_attention_every = 2},
                                        .sparse = true,
                                        .experts_of_mlp_width = true,
                                        .has_window = true,
                                        .hf_keys = gpt_oss_keys,
                                        .read_keys = "layer_types",
                                        .hf_kv_heads = 8,
                                        .hf_head_dim = 64,
                                        .hf_max_positions = 131072,
                                        .hf_rope = {.theta = 150000},
                                        .read_hf = read_gpt_oss,
                                        .write_hf = write_gpt_oss};

}  // namespace pptrain::models

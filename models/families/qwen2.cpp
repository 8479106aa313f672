// Qwen2 and 2.5 (Yang et al., arXiv 2407.10671): Llama's block with biases on q, k and v, and a sliding
// window in some layers, if at all.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "models/hf_config.h"
#include "models/registry.h"

namespace pptrain::models {
namespace {

// Without layer_types the first max_window_layers layers see all keys.
void read_qwen2(const HfJson& json, config::ModelSection& model) {
  if (!json.flag("use_sliding_window", false)) return;
  model.sliding_window = json.is_null("sliding_window") ? 0 : json.size("sliding_window", 4096);
  if (model.sliding_window == 0) return;
  model.layer_types = json.texts("layer_types", all_layer_types);
  const int64_t full = json.count("max_window_layers", 28);
  for (int64_t i = std::ssize(model.layer_types); i < model.num_hidden_layers; ++i)
    model.layer_types.emplace_back(i < full ? full_attention : sliding_attention);
  if (std::ranges::find(model.layer_types, sliding_attention) != model.layer_types.end()) return;
  model.sliding_window = 0;
  model.layer_types.clear();
}

void write_qwen2(const config::ModelSection& model, nlohmann::ordered_json& json) {
  json["use_sliding_window"] = model.sliding_window > 0;
  if (model.sliding_window == 0) return;
  json["sliding_window"] = model.sliding_window;
  json["max_window_layers"] = 0;
  json["layer_types"] = layer_types_of(model);
}

}  // namespace

constinit const Architecture qwen2 = {.name = "qwen2",
                                      .hf_class = "Qwen2ForCausalLM",
                                      .other_names = "qwen2.5",
                                      .weights = decoder_weights,
                                      .decoder = {.qkv_bias = true},
                                      .has_attention_bias = false,
                                      .has_window = true,
                                      .read_keys = "layer_types",
                                      .hf_kv_heads = 32,
                                      .hf_max_positions = 32768,
                                      .read_hf = read_qwen2,
                                      .write_hf = write_qwen2};

}  // namespace pptrain::models

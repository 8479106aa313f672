// SmolLM3 (Hugging Face, 2025): Llama's block, with no rotary embeddings in every fourth layer.
#include <nlohmann/json.hpp>

#include "models/hf_config.h"
#include "models/registry.h"

namespace pptrain::models {
namespace {

using M = config::ModelSection;

constexpr HfKey smollm3_keys[] = {
    {"tie_word_embeddings", &M::tie_word_embeddings, true},
};

void read_smollm3(const HfJson& json, M& model) {
  model.no_rope_layers = json.integers("no_rope_layers");
  const int64_t period = json.size("no_rope_layer_interval", 4);
  if (!json.has("no_rope_layers") && period != 4)
    for (int64_t i = 1; i <= model.num_hidden_layers; ++i) model.no_rope_layers.push_back(i % period != 0);
}

void write_smollm3(const M& model, nlohmann::ordered_json& json) {
  json["no_rope_layers"] = model.no_rope_layers;
  json["use_sliding_window"] = false;
}

}  // namespace

constinit const Architecture smollm3 = {.name = "smollm3",
                                        .hf_class = "SmolLM3ForCausalLM",
                                        .weights = decoder_weights,
                                        .decoder = {.no_rope_every = 4},
                                        .has_mlp_bias = true,
                                        .hf_keys = smollm3_keys,
                                        .hf_kv_heads = 4,
                                        .hf_max_positions = 32768,
                                        .hf_rope = {.theta = 2e6},
                                        .read_hf = read_smollm3,
                                        .write_hf = write_smollm3};

}  // namespace pptrain::models

// Qwen3, dense (Yang et al., arXiv 2505.09388): Llama's block with an RMSNorm on each head of q and k before
// rotation.
#include <nlohmann/json.hpp>

#include "models/hf_config.h"
#include "models/registry.h"

namespace pptrain::models {
namespace {

BlockConfig block(const ModelConfig& model, int64_t layer) {
  BlockConfig config = llama_block(model, layer);
  config.attention.qk_norm = true;
  return config;
}

void read_hf(const HfJson& json, config::ModelSection& model) {
  model.num_key_value_heads = json.size("num_key_value_heads", 32);
  model.head_dim = json.size("head_dim", 128);
  model.max_position_embeddings = json.size("max_position_embeddings", 32768);
  model.attention_bias = json.flag("attention_bias", false);
}

void write_hf(const config::ModelSection& model, nlohmann::ordered_json& json) {
  json["attention_bias"] = model.attention_bias;
  json["use_sliding_window"] = false;
}

}  // namespace

constinit const Architecture qwen3 = {.name = "qwen3",
                                      .hf_model_type = "qwen3",
                                      .hf_class = "Qwen3ForCausalLM",
                                      .weights = decoder_weights,
                                      .block = block,
                                      .read_hf = read_hf,
                                      .write_hf = write_hf};

}  // namespace pptrain::models

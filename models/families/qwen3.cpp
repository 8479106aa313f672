// Qwen3, dense (Yang et al., arXiv 2505.09388): Llama's block with an RMSNorm on each head of q and k before
// rotation.
#include <nlohmann/json.hpp>

#include "models/registry.h"

namespace pptrain::models {
namespace {

void write_qwen3(const config::ModelSection& /*model*/, nlohmann::ordered_json& json) {
  json["use_sliding_window"] = false;
}

}  // namespace

constinit const Architecture qwen3 = {.name = "qwen3",
                                      .hf_class = "Qwen3ForCausalLM",
                                      .weights = decoder_weights,
                                      .decoder = {.qk_norm = nn::QkNorm::head},
                                      .hf_kv_heads = 32,
                                      .hf_head_dim = 128,
                                      .hf_max_positions = 32768,
                                      .write_hf = write_qwen3};

}  // namespace pptrain::models

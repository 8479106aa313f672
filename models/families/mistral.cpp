// Mistral (Jiang et al., arXiv 2310.06825): Llama's block, with a sliding window in all layers or in none.
#include "models/registry.h"

namespace pptrain::models {
namespace {

constexpr HfKey mistral_keys[] = {
    {"sliding_window", &config::ModelSection::sliding_window, 4096, /*null_is_zero=*/true},
};

}  // namespace

constinit const Architecture mistral = {.name = "mistral",
                                        .hf_class = "MistralForCausalLM",
                                        .weights = decoder_weights,
                                        .has_attention_bias = false,
                                        .has_window = true,
                                        .hf_keys = mistral_keys,
                                        .hf_kv_heads = 8,
                                        .hf_max_positions = 131072};

}  // namespace pptrain::models

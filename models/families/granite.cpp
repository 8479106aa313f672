// Granite 3 (IBM, 2024): Llama's block with factors on embeddings, scores, results of layers, and logits
// (Yang et al., arXiv 2203.03466).
#include "models/registry.h"

namespace pptrain::models {
namespace {

using M = config::ModelSection;

constexpr HfKey granite_keys[] = {
    {"embedding_multiplier", &M::embedding_multiplier, 1},
    {"attention_multiplier", &M::attention_multiplier, 1},
    {"residual_multiplier", &M::residual_multiplier, 1},
    {"logits_scaling", &M::logits_scaling, 1},
};

}  // namespace

constinit const Architecture granite = {.name = "granite",
                                        .hf_class = "GraniteForCausalLM",
                                        .weights = decoder_weights,
                                        .has_mlp_bias = true,
                                        .hf_keys = granite_keys,
                                        .hf_max_positions = 2048};

}  // namespace pptrain::models

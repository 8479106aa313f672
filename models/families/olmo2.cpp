// OLMo 2 (OLMo Team, arXiv 2501.00656): norms on the results of attention and MLP instead of before them, and
// on all heads of q and of k side by side.
#include "models/registry.h"

namespace pptrain::models {
namespace {

constexpr WeightName olmo2_weights[] = {
    {"layers.*.attn_post_norm", "model.layers.*.post_attention_layernorm"},
    {"layers.*.mlp_post_norm", "model.layers.*.post_feedforward_layernorm"},
};
constexpr HfKey olmo2_keys[] = {
    {"rms_norm_eps", &config::ModelSection::rms_norm_eps, 1e-5},
};

}  // namespace

constinit const Architecture olmo2 = {.name = "olmo2",
                                      .hf_class = "Olmo2ForCausalLM",
                                      .weights = olmo2_weights,
                                      .decoder = {.norms = NormPlaces::after, .qk_norm = nn::QkNorm::whole},
                                      .hf_keys = olmo2_keys,
                                      .hf_max_positions = 2048};

}  // namespace pptrain::models

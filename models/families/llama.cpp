// Llama 2 and 3, dense (Touvron et al., arXiv 2307.09288; Grattafiori et al., arXiv 2407.21783), and models
// built like them (SmolLM2).
#include "models/registry.h"

namespace pptrain::models {

constinit const Architecture llama = {.name = "llama",
                                      .hf_class = "LlamaForCausalLM",
                                      .other_names = "llama2 llama3 smollm2",
                                      .weights = decoder_weights,
                                      .has_mlp_bias = true,
                                      .heads_divide_width = true,
                                      .hf_max_positions = 2048};

}  // namespace pptrain::models

#include "models/llama.h"

namespace pptrain::models {

// Every key of [model] exists in Llama's config.json.
void check_llama(const ModelConfig&) {}

// attention_bias gives q, k, v and o a bias each.
BlockConfig llama_block(const ModelConfig& model) {
  return {.attention = {.hidden = model.hidden,
                        .heads = model.heads,
                        .kv_heads = model.kv_heads,
                        .head_dim = model.head_dim,
                        .qkv_bias = model.attention_bias,
                        .o_bias = model.attention_bias,
                        .qk_norm = false,
                        .norm_eps = model.norm_eps,
                        .init_std = model.initializer_range,
                        .o_init_std = model.initializer_range},
          .intermediate = model.intermediate,
          .mlp_bias = model.mlp_bias,
          .norm_eps = model.norm_eps,
          .init_std = model.initializer_range};
}

}  // namespace pptrain::models

#include "models/qwen3.h"

#include "core/base/error.h"

namespace pptrain::models {

void check_qwen3(const ModelConfig& model) {
  if (model.mlp_bias)
    throw UsageError("model.mlp_bias: qwen3 has no bias in its feed-forward layers; remove the key");
}

BlockConfig qwen3_block(const ModelConfig& model) {
  return {.attention = {.hidden = model.hidden,
                        .heads = model.heads,
                        .kv_heads = model.kv_heads,
                        .head_dim = model.head_dim,
                        .qkv_bias = model.attention_bias,
                        .o_bias = model.attention_bias,
                        .qk_norm = true,
                        .norm_eps = model.norm_eps,
                        .init_std = model.initializer_range,
                        .o_init_std = model.initializer_range},
          .intermediate = model.intermediate,
          .mlp_bias = false,
          .norm_eps = model.norm_eps,
          .init_std = model.initializer_range};
}

}  // namespace pptrain::models

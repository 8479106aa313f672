#include "models/qwen3.h"

#include "core/base/error.h"
#include "models/llama.h"

namespace pptrain::models {

void check_qwen3(const ModelConfig& model) {
  if (model.mlp_bias)
    throw UsageError("model.mlp_bias: qwen3 has no bias in its feed-forward layers; remove the key");
}

// Llama's block with a norm on each head's queries and keys.
BlockConfig qwen3_block(const ModelConfig& model) {
  BlockConfig block = llama_block(model);
  block.attention.qk_norm = true;
  return block;
}

}  // namespace pptrain::models

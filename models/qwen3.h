// Qwen3, dense (Yang et al., arXiv 2505.09388): Llama's block with an RMSNorm on each head of q and k before
// rotation.
#pragma once

#include "models/block.h"
#include "models/model_config.h"

namespace pptrain::models {

void check_qwen3(const ModelConfig& model);
BlockConfig qwen3_block(const ModelConfig& model);

}  // namespace pptrain::models

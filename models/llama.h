// Llama 2 and 3, dense (Touvron et al., arXiv 2307.09288; Grattafiori et al., arXiv 2407.21783).
#pragma once

#include "models/block.h"
#include "models/model_config.h"

namespace pptrain::models {

void check_llama(const ModelConfig& model);
BlockConfig llama_block(const ModelConfig& model);

}  // namespace pptrain::models

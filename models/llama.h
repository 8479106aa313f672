// Llama 2 and 3, dense (Touvron et al., arXiv 2307.09288; Grattafiori et al., arXiv 2407.21783). Its block is
// the one that others change.
#pragma once

#include "models/block.h"
#include "models/model_config.h"

namespace pptrain::models {

// attention_bias gives q, k, v and o a bias each.
BlockConfig llama_block(const ModelConfig& model);

}  // namespace pptrain::models

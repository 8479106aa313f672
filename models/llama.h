// Llama 2 and 3, dense (Touvron et al., arXiv 2307.09288; Grattafiori et al., arXiv 2407.21783). Its block is
// the one that others change.
#pragma once

#include <cstdint>

#include "models/block.h"
#include "models/model_config.h"

namespace pptrain::models {

// attention_bias gives q, k, v and o a bias each.
BlockConfig llama_block(const ModelConfig& model, int64_t layer);
// The same, with experts in the place of the MLP where the layer is sparse.
BlockConfig sparse_block(const ModelConfig& model, int64_t layer);

}  // namespace pptrain::models

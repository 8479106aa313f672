// A decoder as its layers' configurations: what [model] and the architecture say of it.
#pragma once

#include <cstdint>
#include <vector>

#include "core/nn/rope.h"
#include "core/nn/vocabulary.h"
#include "models/block.h"
#include "models/model_config.h"

namespace pptrain::models {

BlockConfig block_config(const ModelConfig& model, int64_t layer);
nn::EmbeddingConfig embedding_config(const ModelConfig& model);
// The tables that LayerKind::rope counts; none with learned positions.
std::vector<nn::RopeConfig> rope_tables(const ModelConfig& model);
// Whether the keys of a text's earlier tokens are computed again when it reaches this length: longrope uses
// other frequencies from then on, as transformers does for Phi-3.
bool recomputes_keys_at(const ModelConfig& model, int64_t length);

}  // namespace pptrain::models

// Weights of a stage from a Hugging Face directory.
#pragma once

#include <filesystem>

#include "models/transformer_stage.h"

namespace pptrain::models {

// Fills the masters of a materialised stage (float16, bfloat16 or float32 -> float32) and its compute
// weights. Reads only the tensors that the stage needs. Throws Error that names a missing tensor, one of
// another shape or type, one of the stage's layers that this model has no parameter for, or one of a layer
// that the model does not have.
void load_hf_weights(TransformerStage& stage, const std::filesystem::path& hf_dir);

// What load_hf_weights would say of the whole model; reads headers alone.
void check_hf_weights(const ModelConfig& model, const std::filesystem::path& hf_dir);

}  // namespace pptrain::models

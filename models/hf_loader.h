// Weights of Hugging Face directories: of a stage, from one; and where they lie in one.
#pragma once

#include <filesystem>
#include <vector>

#include "core/io/hf_checkpoint.h"
#include "models/transformer_stage.h"
#include "models/weight_map.h"

namespace pptrain::models {

// Fills the masters of a materialised stage (float16, bfloat16 or float32 -> float32) and its compute
// weights. Reads only the tensors that the stage needs. Throws Error that names a missing tensor, one of
// another shape or type, one of the stage's layers that this model has no parameter for, or one of a layer
// that the model does not have.
void load_hf_weights(TransformerStage& stage, const std::filesystem::path& hf_dir);

// Of every parameter of the whole model, in the model's order; a tied head lies where the embedding does.
// Reads headers alone. Throws as load_hf_weights does.
std::vector<HfWeight> find_hf_weights(const ModelConfig& model, const io::HfCheckpoint& checkpoint);

// The tensors of a directory that is written, in the order of the model's parameters; none for a tied head.
// Throws Error for a parameter that transformers' model lacks: a bias that balances experts.
std::vector<HfTensor> hf_tensors(const ModelConfig& model);

// Where the parameters of a part of the model may lie.
WeightMap weight_map(const ModelConfig& model, const StageSlice& slice);

}  // namespace pptrain::models

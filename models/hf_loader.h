// Weights of Hugging Face directories: of a stage, from one; and where they lie in one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/io/hf_checkpoint.h"
#include "models/transformer_stage.h"

namespace pptrain::models {

// Fills the masters of a materialised stage (float16, bfloat16 or float32 -> float32) and its compute
// weights. Reads only the tensors that the stage needs. Throws Error that names a missing tensor, one of
// another shape or type, one of the stage's layers that this model has no parameter for, or one of a layer
// that the model does not have.
void load_hf_weights(TransformerStage& stage, const std::filesystem::path& hf_dir);

// Where a Hugging Face directory holds a parameter: in so many elements of a tensor, in row-major order, from
// the first-th on. (The matrices of all experts may lie in one tensor.)
struct HfWeight {
  std::string parameter;  // global name
  std::vector<int64_t> shape;
  std::string tensor;
  int64_t first = 0;
};

// Of every parameter of the whole model, in the model's order; a tied head lies where the embedding does.
// Reads headers alone. Throws as load_hf_weights does.
std::vector<HfWeight> find_hf_weights(const ModelConfig& model, const io::HfCheckpoint& checkpoint);

// What load_hf_weights would say of the whole model; reads headers alone.
void check_hf_weights(const ModelConfig& model, const std::filesystem::path& hf_dir);

// Where a directory that is written holds the model's parameters, in the model's order: each in a tensor of
// its own, none for a tied head. Throws Error for a parameter that transformers' model lacks: a bias that
// balances experts.
std::vector<HfWeight> hf_tensors(const ModelConfig& model);

}  // namespace pptrain::models

// What transformers reads a model from, as it is written: the inverse of hf_config and hf_loader.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/config/job_config.h"
#include "models/model_config.h"

namespace pptrain::models {

// Tokens that a text begins and ends with, where that is known.
struct TextEnds {
  std::optional<int32_t> bos, eos;
};

// config.json of a finished [model] whose weights are stored as `dtype` (float32, bfloat16 or float16):
// read_hf_config gives the same model. Rotary settings are in the older form (rope_theta, rope_scaling),
// which all versions of transformers read.
nlohmann::ordered_json hf_config(const config::ModelSection& model, at::ScalarType dtype,
                                 const TextEnds& ends);

// A tensor of a Hugging Face directory, which is one parameter.
struct HfTensor {
  std::string name;
  std::string parameter;  // global name
  std::vector<int64_t> shape;
};

// Those of the model in its order, each expert's by itself; none for a tied head. Throws Error for a
// parameter that transformers' model lacks: a bias that balances experts.
std::vector<HfTensor> hf_tensors(const ModelConfig& model);

}  // namespace pptrain::models

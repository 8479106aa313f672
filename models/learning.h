// What a job lets learn of a model: [lora], and optimizer.groups that freeze.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>

#include "core/nn/parameter.h"
#include "models/model_config.h"

namespace pptrain::models {

// With lora.rank > 0 only adapters learn; otherwise all that no group freezes. The result holds no
// references.
nn::Learning learning_of(const ModelConfig& model);

// Some of the model's parameters do not learn.
bool freezes(const ModelConfig& model);

// The wrong entries of lora.targets, by index, each with the reason. `specs`: the parameters of the whole
// model with its adapters.
std::map<size_t, std::string> check_targets(const config::LoraSection& lora,
                                            std::span<const nn::ParameterSpec* const> specs);

}  // namespace pptrain::models

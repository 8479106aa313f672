// Rules of optimizer.groups for parameters.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>

#include "core/config/job_config.h"
#include "core/nn/parameter.h"

namespace pptrain::optim {

// The first group that matches, or null. A group's `match` is the word of a role (matrix, embedding, head,
// norm, bias, router), or a pattern for the global name in which * stands for any characters. A tied head is
// matched as the embedding that it is a copy of. Biases that balance experts are in no group.
const config::OptimizerGroup* find_group(std::span<const config::OptimizerGroup> groups,
                                         const nn::ParameterSpec& spec);

// The groups that no parameter of the model is in, each with the reason. `specs`: all of the whole model.
std::map<size_t, std::string> check_groups(std::span<const config::OptimizerGroup> groups,
                                           std::span<const nn::ParameterSpec* const> specs);

}  // namespace pptrain::optim

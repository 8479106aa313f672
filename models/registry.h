// The architectures by name: the one list to extend when a model is added.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "models/block.h"
#include "models/model_config.h"

namespace pptrain::models {

struct Architecture {
  std::string_view name;             // model.arch
  std::string_view hf_architecture;  // Hugging Face's class, for config.json
  // Throws UsageError for a key of [model] that this architecture does not have.
  void (*check)(const ModelConfig&);
  BlockConfig (*block)(const ModelConfig&);
};

// Throws UsageError that lists the known names.
const Architecture& find_architecture(std::string_view name);

std::vector<std::string_view> architecture_names();

}  // namespace pptrain::models

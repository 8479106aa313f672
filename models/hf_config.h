// The model that a Hugging Face directory describes.
#pragma once

#include <string>
#include <string_view>

#include "core/config/job_config.h"

namespace pptrain::models {

// Reads dir/config.json, of an architecture in the registry, with transformers' defaults for what it leaves
// out: both the older form (rope_theta, rope_scaling) and the newer one (rope_parameters). The result has
// every size set; hf_dir and init keep their defaults. Throws UsageError, which names the file and the key,
// where the file is missing, damaged, holds a number that [model] would not take either, or describes a model
// that pptrain would not compute as transformers does.
config::ModelSection read_hf_config(const std::string& dir);

// The same of the file's text; `path` stands for the file in messages.
config::ModelSection parse_hf_config(std::string_view text, const std::string& path);

}  // namespace pptrain::models

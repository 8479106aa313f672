// The model that a Hugging Face directory describes.
#pragma once

#include <string>

#include "core/config/job_config.h"

namespace pptrain::models {

// Reads dir/config.json, of an architecture in the registry, with transformers' defaults for what it leaves
// out: both the older form (rope_theta, rope_scaling) and the newer one (rope_parameters). The result has
// every size set; hf_dir and init keep their defaults. Throws UsageError, which names the file and the key,
// where the file is missing, damaged, or describes a model that pptrain would not compute as transformers
// does.
config::ModelSection read_hf_config(const std::string& dir);

}  // namespace pptrain::models

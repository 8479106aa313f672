// The model that a Hugging Face directory describes.
#pragma once

#include <span>
#include <string>

#include "core/config/job_config.h"

namespace pptrain::config {

// Reads dir/config.json (model_type llama or qwen3), with transformers' defaults for what it leaves out: both
// the older form (rope_theta, rope_scaling) and the newer one (rope_parameters). The result has every size
// set; hf_dir and init keep their defaults. Throws UsageError, which names the file and the key, where the
// file is missing, damaged, or describes a model that pptrain would not compute as transformers does.
ModelSection read_hf_config(const std::string& dir);

// Of [model]'s options, those that fix which weights there are and their shapes (full names).
std::span<const std::string> hf_fixed_options();

}  // namespace pptrain::config

// Rotary position embedding (Su et al., arXiv 2104.09864), with Llama 3's frequency scaling.
#pragma once

#include <cstdint>
#include <optional>

#include "core/kernels/kernels.h"

namespace pptrain::nn {

// Hugging Face's rope_type "llama3".
struct Llama3RopeScaling {
  double factor = 8;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  int64_t original_max_position_embeddings = 8192;
};

// Hugging Face's rope_type "linear": positions divided by factor.
struct LinearRopeScaling {
  double factor = 1;
};

// Tables for positions [0, max_position), computed in float32 as Hugging Face does, on `device`.
kernels::RopeTable make_rope_table(int64_t head_dim, int64_t max_position, double theta,
                                   const std::optional<Llama3RopeScaling>& llama3,
                                   const std::optional<LinearRopeScaling>& linear, at::Device device);

}  // namespace pptrain::nn

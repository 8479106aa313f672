// Rotary position embedding (Su et al., arXiv 2104.09864), with its frequency scalings.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

#include "core/config/job_config.h"
#include "core/kernels/kernels.h"

namespace pptrain::nn {

// Scalings: linear divides positions; dynamic (NTK) raises the base for sequences beyond max_positions;
// llama3 (Llama 3.1) and yarn (arXiv 2309.00071) stretch long wavelengths; longrope (arXiv 2402.13753) has a
// factor for each frequency, [dim / 2], up to the original positions and beyond.
struct RopeConfig {
  int64_t dim = 0;  // of a head that are rotated, the first ones: even
  double theta = 10000;
  int64_t max_positions = 0;  // of dynamic scaling: max_position_embeddings
  config::RopeScaling scaling = {};
};

// Tables for positions [0, positions), computed in float32 as Hugging Face does for a sequence of that
// length, on `device`. Throws Error for what does not fit.
kernels::RopeTable make_rope_table(const RopeConfig& config, int64_t positions, at::Device device);

}  // namespace pptrain::nn

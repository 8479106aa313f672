// Rotary position embedding (Su et al., arXiv 2104.09864), with its frequency scalings.
#pragma once

#include <cstdint>

#include "core/config/job_config.h"
#include "core/kernels/kernels.h"

namespace pptrain::nn {

// Tables for positions [0, max_position), computed in float32 as Hugging Face does, on `device`.
kernels::RopeTable make_rope_table(int64_t head_dim, int64_t max_position, double theta,
                                   const config::RopeScaling& scaling, at::Device device);

}  // namespace pptrain::nn

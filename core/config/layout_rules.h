// What cannot be shared out over the ranks of a mesh: heads, widths, experts and tokens.
#pragma once

#include "core/config/job_config.h"
#include "core/config/loader.h"

namespace pptrain::config {

// Reports each axis of [distributed] that does not divide what its ranks share out. The loader and the search
// over meshes ask this one function. Sizes that are missing (0) are reported elsewhere.
void check_layout(const JobConfig& job, const ReportConflict& report);

// Has a layer an MLP of intermediate_size? Mixtral's layers all have experts; qwen3_moe's have them but for
// those that decoder_sparse_step and mlp_only_layers name.
bool has_dense_layers(const ModelSection& model);

}  // namespace pptrain::config

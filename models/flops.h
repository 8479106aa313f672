// Counts of a model, from its parameters alone.
#pragma once

#include <cstdint>
#include <string>

#include "models/model_config.h"

namespace pptrain::models {

// Parameters of the whole model, or only those that learn; a tied head is counted once.
int64_t parameter_count(const ModelConfig& model, bool learning_only = false);

// "1.87 M parameters", from a thousand million on "77.85 B parameters".
std::string parameters_text(int64_t count);
// The same for the whole model: "8.05 B parameters, of which 20.97 M learn" if some are frozen.
std::string parameters_text(const ModelConfig& model);

// Useful FLOPs of one token's forward and backward: 6 N_matmul + 6 layers seq heads head_dim. A frozen weight
// counts 4 instead of 6, because its gradient is not computed. N_matmul counts the GEMM weights that a token
// meets: the head and the token's experts are included, norms, biases and the input embedding are not. Causal
// attention is counted once (half the square; less if a layer has a sliding window), recompute not at all.
double flops_per_token(const ModelConfig& model, int64_t seq);

// Length in tokens of the causal document whose attention takes as many FLOPs as the GEMMs of its tokens.
int64_t attention_length(const ModelConfig& model);

}  // namespace pptrain::models

// What a model counts, from its parameters alone.
#pragma once

#include <cstdint>
#include <string>

#include "models/model_config.h"

namespace pptrain::models {

// Parameters of the whole model, or those of them that learn; a tied head is counted once.
int64_t parameter_count(const ModelConfig& model, bool learning_only = false);

// "1.87 M parameters", from a thousand million on "77.85 B parameters".
std::string parameters_text(int64_t count);
// Of the whole model: "8.05 B parameters, of which 20.97 M learn" where some are frozen.
std::string parameters_text(const ModelConfig& model);

// Useful FLOPs of one token's forward and backward: 6 N_matmul + 6 layers seq heads head_dim, of which a
// frozen weight counts 4, for its gradient is not taken. N_matmul holds the weights of matrix products that a
// token meets: with the head and the experts that it goes through, without norms, biases and the input
// embedding. Causal attention is counted once (half the square, less where a layer has a sliding window),
// recompute not at all.
double flops_per_token(const ModelConfig& model, int64_t seq);

// Tokens of a causal document whose attention takes as many of them as the products that its tokens meet.
int64_t attention_length(const ModelConfig& model);

}  // namespace pptrain::models

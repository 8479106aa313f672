// What a model costs, from its sizes alone: floating-point operations, parameters and bytes.
#pragma once

#include <cstdint>

#include "models/model_config.h"
#include "models/transformer_stage.h"

namespace pptrain::models {

// Weights that take part in matrix products, of one layer and of the head: norms, biases and the embedding
// are not.
int64_t layer_matmul_parameters(const ModelConfig& model);
int64_t head_matmul_parameters(const ModelConfig& model);

// Parameters of the whole model, a tied head counted once.
int64_t parameter_count(const ModelConfig& model);

// Useful FLOPs of one token's forward and backward: 6 N_matmul + 6 layers seq heads head_dim. N_matmul holds
// the head and not the input embedding; causal attention is counted once (half the square), recompute not at
// all.
double flops_per_token(const ModelConfig& model, int64_t seq);

// What a stage holds between steps. A tied head counts on its stage: it has its own copy.
struct StageSize {
  int64_t layers = 0;
  int64_t parameters = 0;
  int64_t weight_bytes = 0;     // float32 masters, and compute copies where the compute type is bfloat16
  int64_t gradient_bytes = 0;   // float32
  int64_t optimizer_bytes = 0;  // two float32 moments
  // What optimizer.post_validation keeps of the step before: masters and moments once more.
  int64_t previous_bytes() const { return parameters * 4 + optimizer_bytes; }
  int64_t total_bytes() const { return weight_bytes + gradient_bytes + optimizer_bytes; }
};
StageSize stage_size(const ModelConfig& model, const StageSlice& slice, bool bfloat16);

// Bytes that one microbatch of `tokens` tokens keeps between a stage's F and its backward. The input of the
// stage is counted, the microbatch's own tensors are not.
int64_t activation_bytes(const ModelConfig& model, const StageSlice& slice, int64_t tokens, bool bfloat16,
                         Recompute recompute = Recompute::none);

// Bytes that I leaves for W of one microbatch: the two operands of each weight gradient, the embedding's
// output gradient included. Nothing else stays; recompute changes nothing here.
int64_t weight_operand_bytes(const ModelConfig& model, const StageSlice& slice, int64_t tokens,
                             bool bfloat16);

// Bytes of what one stage sends to the next: a microbatch's residual stream, or its gradient.
int64_t boundary_bytes(const ModelConfig& model, int64_t tokens, bool bfloat16);

// Modelled FLOPs of one microbatch of `batch` sequences of `seq` tokens. The head's three products all happen
// in F; what is recomputed, in I.
struct StageCost {
  double forward = 0;
  double input = 0;   // I
  double weight = 0;  // W
};
StageCost stage_cost(const ModelConfig& model, const StageSlice& slice, int64_t batch, int64_t seq,
                     Recompute recompute = Recompute::none);

}  // namespace pptrain::models

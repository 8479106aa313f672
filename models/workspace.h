// The memory that a stage's passes take for a while, from the model's sizes alone.
#pragma once

#include <cstdint>

#include "models/model_config.h"
#include "models/transformer_stage.h"
#include "parallel/schedule/cost/memory.h"

namespace pptrain::models {

// Of one microbatch, in bytes: what a pass holds at its peak beside `activation_bytes` (F, B, I) or
// `weight_operand_bytes` (W). The incoming gradient and what the pass returns count, where they are no part
// of these. Tensors alone: libraries' own scratch memory is not known here. Attention is counted as the
// project's CPU kernel takes it; CUDA's libraries want k and v expanded to all heads, and take more.
struct Workspace {
  int64_t forward = 0;
  int64_t backward = 0;         // B
  int64_t backward_input = 0;   // I; with recompute, the operands of the blocks that it has passed
  int64_t backward_weight = 0;  // W
};
Workspace workspace_bytes(const ModelConfig& model, const StageSlice& slice, int64_t tokens, bool bfloat16,
                          Recompute recompute = Recompute::none);

// All that one microbatch takes on a stage, as schedule::peak_bytes wants it.
schedule::StageBytes stage_bytes(const ModelConfig& model, const StageSlice& slice, int64_t tokens,
                                 bool bfloat16, Recompute recompute = Recompute::none);

}  // namespace pptrain::models

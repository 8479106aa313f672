#include "models/flops.h"

#include "models/registry.h"

namespace pptrain::models {
namespace {

// FLOPs of one layer's two attention products in the forward pass of one token; a causal row sees seq / 2
// keys.
double attention_flops(const ModelConfig& model, int64_t seq) {
  return 2.0 * static_cast<double>(seq * model.heads * model.head_dim);
}

int64_t layer_count(const StageSlice& slice) {
  return slice.end_layer - slice.first_layer;
}

}  // namespace

int64_t layer_matmul_parameters(const ModelConfig& model) {
  const int64_t q = model.heads * model.head_dim;
  const int64_t kv = model.kv_heads * model.head_dim;
  return model.hidden * (2 * q + 2 * kv) + 3 * model.hidden * model.intermediate;
}

int64_t head_matmul_parameters(const ModelConfig& model) {
  return model.vocab * model.hidden;
}

int64_t parameter_count(const ModelConfig& model) {
  const StageSlice whole{.index = 0,
                         .first_layer = 0,
                         .end_layer = static_cast<int>(model.layers),
                         .embedding = true,
                         .head = true};
  return stage_size(model, whole, /*bfloat16=*/false).parameters -
         (model.tied ? model.vocab * model.hidden : 0);
}

double flops_per_token(const ModelConfig& model, int64_t seq) {
  const auto matmul =
      static_cast<double>(model.layers * layer_matmul_parameters(model) + head_matmul_parameters(model));
  return 6 * matmul + 3 * static_cast<double>(model.layers) * attention_flops(model, seq);
}

StageSize stage_size(const ModelConfig& model, const StageSlice& slice, bool bfloat16) {
  TransformerStage stage(model, slice);  // declares only: no memory
  StageSize size{.layers = layer_count(slice), .parameters = stage.parameters().parameter_count()};
  size.weight_bytes = size.parameters * (bfloat16 ? 6 : 4);
  size.gradient_bytes = size.parameters * 4;
  size.optimizer_bytes = size.parameters * 8;
  return size;
}

int64_t activation_bytes(const ModelConfig& model, const StageSlice& slice, int64_t tokens, bool bfloat16,
                         Recompute recompute) {
  const bool qk_norm = find_architecture(model.arch).block(model).attention.qk_norm;
  const int64_t q = model.heads * model.head_dim;
  const int64_t kv = model.kv_heads * model.head_dim;
  int64_t elements = model.hidden;  // in the compute type: the block's input
  int64_t floats = 0;
  if (recompute != Recompute::full) {
    elements += model.hidden + (q + 2 * kv) + q;  // the second norm's input, qkv, the attention's output
    floats += model.heads;                        // logsumexp
    if (qk_norm) {                                // q and k after it, which otherwise lie in qkv
      elements += q + kv;
      floats += model.heads + model.kv_heads;
    }
  }
  if (recompute == Recompute::none) {
    elements += 2 * model.hidden + 3 * model.intermediate;  // the norms' outputs; gate, up and their product
    floats += 2;                                            // the norms' rstd
  }
  const int64_t width = bfloat16 ? 2 : 4;
  int64_t bytes = layer_count(slice) * (elements * width + floats * 4);
  if (slice.head) bytes += model.hidden * width;  // the gradient at the last block's output
  return bytes * tokens;
}

int64_t weight_operand_bytes(const ModelConfig& model, const StageSlice& slice, int64_t tokens,
                             bool bfloat16) {
  const int64_t q = model.heads * model.head_dim;
  const int64_t kv = model.kv_heads * model.head_dim;
  // Inputs and output gradients of the products: qkv; o; gate and up; down.
  const int64_t layer = (model.hidden + q + 2 * kv) + (q + model.hidden) +
                        (model.hidden + 2 * model.intermediate) + (model.intermediate + model.hidden);
  const int64_t elements = layer_count(slice) * layer + (slice.embedding ? model.hidden : 0);
  return elements * tokens * (bfloat16 ? 2 : 4);
}

int64_t boundary_bytes(const ModelConfig& model, int64_t tokens, bool bfloat16) {
  return model.hidden * tokens * (bfloat16 ? 2 : 4);
}

StageCost stage_cost(const ModelConfig& model, const StageSlice& slice, int64_t batch, int64_t seq,
                     Recompute recompute) {
  const auto tokens = static_cast<double>(batch * seq);
  const auto layers = static_cast<double>(layer_count(slice));
  const double matmul = 2 * layers * static_cast<double>(layer_matmul_parameters(model));
  const double attention = layers * attention_flops(model, seq);
  StageCost cost{.forward = matmul + attention, .input = matmul + 2 * attention, .weight = matmul};
  const double down = 2 * layers * static_cast<double>(model.hidden * model.intermediate);
  if (recompute == Recompute::selective) cost.input += 2 * down;  // gate and up
  if (recompute == Recompute::full) cost.input += cost.forward - down;
  if (slice.head) cost.forward += 6 * static_cast<double>(head_matmul_parameters(model));
  return {.forward = cost.forward * tokens, .input = cost.input * tokens, .weight = cost.weight * tokens};
}

}  // namespace pptrain::models

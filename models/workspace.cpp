#include "models/workspace.h"

#include <algorithm>

#include "core/nn/cross_entropy.h"
#include "models/flops.h"
#include "models/registry.h"

namespace pptrain::models {
namespace {

// Walks through the passes as block.cpp and transformer_stage.cpp run them, allocation by allocation.
class Ledger {
 public:
  Ledger(const ModelConfig& model, int64_t tokens, bool bfloat16, Recompute recompute)
      : recompute_(recompute),
        qk_norm_(find_architecture(model.arch).block(model).attention.qk_norm),
        hidden_(boundary_bytes(model, tokens, bfloat16)),
        q_(hidden_ / model.hidden * model.heads * model.head_dim),
        kv_(hidden_ / model.hidden * model.kv_heads * model.head_dim),
        inner_(hidden_ / model.hidden * model.intermediate),
        rstd_(4 * tokens),
        logsumexp_(rstd_ * model.heads),
        head_rstd_(rstd_ * (model.heads + model.kv_heads)) {}

  int64_t peak() const { return peak_; }
  void hold(int64_t bytes) { peak_ = std::max(peak_, now_ += bytes); }
  void release(int64_t bytes) { now_ -= bytes; }

  // From the block's input to its output, both held.
  void forward_block() {
    fill();
    hold(hidden_);
    if (recompute_ == Recompute::none) return;
    release(hidden_ + 2 * rstd_ + hidden_ + 3 * inner_);  // the norms' outputs and rstd, the MLP's
    if (recompute_ == Recompute::full) {
      release(hidden_ + q_ + 2 * kv_ + q_ + logsumexp_);
      if (qk_norm_) release(q_ + kv_ + head_rstd_);
    }
  }

  // From the gradient of the block's output to that of its input. Deferred, the operands stay.
  void backward_block(bool deferred) {
    const auto use = [&](int64_t operands) {
      if (!deferred) release(operands);
    };
    if (recompute_ == Recompute::full) fill();
    if (recompute_ == Recompute::selective) hold(2 * hidden_ + 2 * rstd_ + 3 * inner_);
    use(inner_);   // down
    hold(inner_);  // its input gradient
    release(inner_);
    hold(hidden_);  // of gate and up
    use(hidden_ + 2 * inner_);
    release(hidden_ + rstd_);  // the second norm
    hold(q_);                  // the attention's output gradient
    hold(q_ + 2 * kv_);        // dq, dk, dv
    release(q_ + logsumexp_);
    if (qk_norm_) release(q_ + kv_);
    use(q_);  // o
    if (qk_norm_) hold(q_ + 2 * kv_);
    release(q_ + 2 * kv_);
    if (qk_norm_) release(q_ + 2 * kv_ + head_rstd_);
    hold(hidden_);  // of qkv
    use(hidden_ + q_ + 2 * kv_);
    release(hidden_ + rstd_);  // the first norm
    use(2 * hidden_);          // both residual gradients
  }

  void head(int64_t rows, int64_t vocab_bytes) {
    hold(hidden_ + rstd_);  // normed
    hold(hidden_);          // its gradient, which the record keeps
    hold(std::min(rows, nn::LinearCrossEntropy::rows_per_chunk(vocab_bytes)) * vocab_bytes);
    hold(rstd_);  // losses
  }

 private:
  void fill() {
    hold(hidden_ + rstd_);  // norm
    hold(q_ + 2 * kv_);     // qkv
    if (qk_norm_) hold(q_ + kv_ + head_rstd_);
    hold(q_ + logsumexp_);  // attention
    hold(hidden_);          // o, then the sum
    hold(hidden_ + rstd_);  // norm
    hold(3 * inner_);       // gate, up, product
  }

  Recompute recompute_;
  bool qk_norm_;
  int64_t hidden_, q_, kv_, inner_;  // of all tokens
  int64_t rstd_, logsumexp_, head_rstd_;
  int64_t now_ = 0;
  int64_t peak_ = 0;
};

}  // namespace

Workspace workspace_bytes(const ModelConfig& model, const StageSlice& slice, int64_t tokens, bool bfloat16,
                          Recompute recompute) {
  const int64_t activation = activation_bytes(model, slice, tokens, bfloat16, recompute);
  const int64_t boundary = boundary_bytes(model, tokens, bfloat16);
  const int layers = slice.end_layer - slice.first_layer;
  const Ledger start(model, tokens, bfloat16, recompute);

  Ledger forward = start;
  forward.hold(boundary);
  for (int i = 0; i < layers; ++i) forward.forward_block();
  if (slice.head) forward.head(tokens, model.vocab * (bfloat16 ? 2 : 4));

  const auto backward = [&](bool deferred) {
    Ledger ledger = start;
    ledger.hold(activation);
    if (!slice.head) ledger.hold(boundary);
    for (int i = 0; i < layers; ++i) ledger.backward_block(deferred);
    return ledger.peak() - activation;
  };
  // W adds to the main gradients in place.
  return {.forward = forward.peak() - activation,
          .backward = backward(false),
          .backward_input = backward(true),
          .backward_weight = 0};
}

schedule::StageBytes stage_bytes(const ModelConfig& model, const StageSlice& slice, int64_t tokens,
                                 bool bfloat16, Recompute recompute) {
  const Workspace workspace = workspace_bytes(model, slice, tokens, bfloat16, recompute);
  return {.activation = activation_bytes(model, slice, tokens, bfloat16, recompute),
          .weight_operands = weight_operand_bytes(model, slice, tokens, bfloat16),
          .workspace_forward = workspace.forward,
          .workspace_backward = workspace.backward,
          .workspace_backward_input = workspace.backward_input,
          .workspace_backward_weight = workspace.backward_weight,
          .message = boundary_bytes(model, tokens, bfloat16)};
}

}  // namespace pptrain::models

// Causal grouped-query self-attention: qkv projection, optional QK-norm and RoPE, core attention, output
// projection.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/attention/attention.h"
#include "core/nn/linear.h"
#include "core/nn/norm.h"
#include "core/nn/parameter.h"
#include "core/nn/tensor_group.h"
#include "core/nn/token_info.h"
#include "core/nn/weight_grad_queue.h"

namespace pptrain::nn {

// What an RMSNorm before rotation takes as a row: none; head: each head of q and of k (Qwen3); whole: all
// heads of q, and of k, side by side (OLMo 2).
enum class QkNorm { none, head, whole };

struct AttentionConfig {
  int64_t hidden = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;  // divides heads
  int64_t head_dim = 0;  // heads * head_dim may differ from hidden
  bool qkv_bias = false;
  bool o_bias = false;
  QkNorm qk_norm = QkNorm::none;
  NormKind qk_norm_kind = NormKind::rms;  // or rms_plus_one
  double norm_eps = 1e-6;
  int rope = 0;                   // which of TokenInfo::ropes rotates q and k; -1: none
  int64_t rotary_dim = 0;         // how many of a head's dims it rotates, the first ones; 0: all
  std::optional<double> scale{};  // these four as attention::AttentionCall has them
  double softcap = 0;
  int64_t window = 0;
  bool sinks = false;
  double init_std = 0.02;
  double o_init_std = 0.02;
};

class Attention {
 public:
  struct Saved {
    at::Tensor x;  // T [share, hidden]: operand of the qkv weight gradient
    // T [tokens, (heads + 2 kv_heads) * head_dim]. The core's v is a view of it; so are its q and k without
    // QK-norm, which are rotated in place. If key-value heads are copies, two tensors: q, and k with v. If
    // norms take rows of q and of k, apart from rotation, three.
    std::vector<at::Tensor> qkv;
    at::Tensor q_rstd, k_rstd;  // float32 [tokens, heads | kv_heads], or of each row; with QK-norm only
    at::Tensor out;             // T [tokens, heads * head_dim]: operand of the o weight gradient
    attention::Saved core;

    std::vector<at::Tensor> tensors() const;  // all of them; some share memory, some are undefined
  };

  // Declares `<name>.{q,k,v,o}.weight`, biases, `<name>.{q_norm,k_norm}.weight` and `<name>.sinks` [heads],
  // which start at 0. The ranks of `tp` shard the heads, and the rows of x and of the result: T [share,
  // hidden] below is [tokens, hidden] on a single rank. If there are more ranks than key-value heads,
  // neighbours have a copy of one.
  Attention(ParameterGroup& group, const std::string& name, const AttentionConfig& config,
            std::shared_ptr<attention::CoreAttention> core = attention::make_local_attention(),
            std::shared_ptr<const TensorGroup> tp = std::make_shared<TensorGroup>());

  // x: T [share, hidden] -> T [share, hidden].
  at::Tensor forward(const at::Tensor& x, const TokenInfo& tokens, Saved& saved) const;

  // dy: T [share, hidden] -> dx. `tokens`: as in the forward pass. Frees `saved` as it goes; weight
  // gradients go to `queue`.
  at::Tensor backward_input(Saved& saved, const at::Tensor& dy, const TokenInfo& tokens,
                            WeightGradQueue& queue);

 private:
  struct Heads;
  Heads split_heads(const std::vector<at::Tensor>& qkv) const;
  const Rotation& rotation(const TokenInfo& tokens) const;
  // The dims of heads [tokens, heads, head_dim] that are rotated.
  at::Tensor rotated_dims(const at::Tensor& heads) const;
  // q and k after their norms, if any, and rotation; fills saved.q_rstd and k_rstd.
  Heads prepare(const TokenInfo& tokens, Saved& saved) const;
  Heads norm_heads(const Heads& heads, const TokenInfo& tokens, Saved& saved) const;
  // Norms contiguous heads; a row is as long as the weight.
  at::Tensor norm_rows(const at::Tensor& heads, const Weight& weight, at::Tensor& rstd) const;

  // Gradient of saved.qkv: in the memory of `grads` if it has the same layout, else in new buffers or in the
  // memory of saved.qkv.
  std::vector<at::Tensor> qkv_gradient(const Saved& saved, const attention::Gradients& grads,
                                       const TokenInfo& tokens);
  // The gradient of the fused qkv, written over grads.fused: [tokens, (heads + 2 kv_heads) * head_dim].
  at::Tensor fused_gradient(const Saved& saved, const attention::Gradients& grads, const TokenInfo& tokens);
  // dq and dk, which may be the tensors of `grads`, become the gradients before norm_heads.
  void norm_heads_back(const Saved& saved, const attention::Gradients& grads, const TokenInfo& tokens,
                       const at::Tensor& dq, const at::Tensor& dk);
  // Rotates gradients of rotated heads back in place, if heads are rotated.
  void turn_back(const std::vector<at::Tensor>& heads, const TokenInfo& tokens) const;
  // If norms take rows: the gradients of q, k and v.
  std::vector<at::Tensor> rows_gradient(const Saved& saved, const attention::Gradients& grads,
                                        const TokenInfo& tokens);
  at::Tensor norm_rows_back(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& rstd,
                            Weight& weight) const;

  AttentionConfig local_;  // with this rank's heads
  bool rows_;              // norms take rows of q and of k, apart from rotation
  std::shared_ptr<attention::CoreAttention> core_;
  ColumnLinear qkv_;
  RowLinear o_;
  Weight* q_norm_ = nullptr;
  Weight* k_norm_ = nullptr;
  Weight* sinks_ = nullptr;
};

}  // namespace pptrain::nn

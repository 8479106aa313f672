// Causal grouped-query self-attention: qkv projection, optional QK-norm, RoPE, core attention, output
// projection.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "core/attention/attention.h"
#include "core/nn/linear.h"
#include "core/nn/parameter.h"
#include "core/nn/region.h"
#include "core/nn/token_info.h"
#include "core/nn/weight_grad_queue.h"

namespace pptrain::nn {

struct AttentionConfig {
  int64_t hidden = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;  // divides heads
  int64_t head_dim = 0;  // heads * head_dim may differ from hidden
  bool qkv_bias = false;
  bool o_bias = false;
  bool qk_norm = false;
  double norm_eps = 1e-6;
  double init_std = 0.02;
  double o_init_std = 0.02;
};

class Attention {
 public:
  struct Saved {
    at::Tensor x;  // T [share, hidden]: operand of the qkv weight gradient
    // T [tokens, (heads + 2 kv_heads) * head_dim]. The core's v is a view of it; so are its q and k
    // without QK-norm, which are rotated in place. Where key-value heads are copies, two tensors: q, and k
    // with v.
    std::vector<at::Tensor> qkv;
    at::Tensor q_rstd, k_rstd;  // float32 [tokens, heads | kv_heads], with QK-norm only
    at::Tensor out;             // T [tokens, heads * head_dim]: operand of the o weight gradient
    attention::Saved core;

    std::vector<at::Tensor> tensors() const;  // all of them; some share memory, some are undefined
  };

  // Declares `<name>.{q,k,v,o}.weight`, biases and `<name>.{q_norm,k_norm}.weight`. The ranks of `region`
  // share out the heads, and the rows of x and of the result: T [share, hidden] below is [tokens, hidden] for
  // a rank alone. Where they are more than the key-value heads, neighbours have a copy of one.
  Attention(ParameterGroup& group, const std::string& name, const AttentionConfig& config,
            std::shared_ptr<attention::CoreAttention> core = attention::make_local_attention(),
            std::shared_ptr<const Region> region = std::make_shared<Region>());

  // x: T [share, hidden] -> T [share, hidden].
  at::Tensor forward(const at::Tensor& x, const TokenInfo& tokens, Saved& saved) const;

  // dy: T [share, hidden] -> dx. `tokens`: as in the forward pass. Frees `saved` as it goes; weight
  // gradients go to `queue`.
  at::Tensor backward_input(Saved& saved, const at::Tensor& dy, const TokenInfo& tokens,
                            WeightGradQueue& queue);

 private:
  // Gradient of saved.qkv: in the memory of `grads` where that lies alike, else in buffers of its own or in
  // the place of saved.qkv.
  std::vector<at::Tensor> qkv_gradient(const Saved& saved, const attention::Gradients& grads,
                                       const TokenInfo& tokens);
  // The gradient of the fused qkv, written over grads.fused: [tokens, (heads + 2 kv_heads) * head_dim].
  at::Tensor rotate_fused_back(const Saved& saved, const attention::Gradients& grads,
                               const TokenInfo& tokens);
  // dq and dk, which may be those of `grads`, become the gradients before norm and rotation.
  void rotate_back(const Saved& saved, const attention::Gradients& grads, const TokenInfo& tokens,
                   const at::Tensor& dq, const at::Tensor& dk);

  AttentionConfig local_;  // with this rank's heads
  std::shared_ptr<attention::CoreAttention> core_;
  ColumnLinear qkv_;
  RowLinear o_;
  Weight* q_norm_ = nullptr;
  Weight* k_norm_ = nullptr;
};

}  // namespace pptrain::nn

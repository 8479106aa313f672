// Causal grouped-query self-attention: qkv projection, optional QK-norm, RoPE, an AttentionProduct, output
// projection.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "core/nn/attention_product.h"
#include "core/nn/linear.h"
#include "core/nn/parameter.h"
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
    at::Tensor x;  // T [tokens, hidden]: operand of the qkv weight gradient
    // T [tokens, (heads + 2 kv_heads) * head_dim]. The product's v is a view of it; so are its q and k
    // without QK-norm, which are rotated in place.
    at::Tensor qkv;
    at::Tensor q_rstd, k_rstd;  // float32 [tokens, heads | kv_heads], with QK-norm only
    at::Tensor out;             // T [tokens, heads * head_dim]: operand of the o weight gradient
    AttentionProduct::Saved product;

    std::vector<at::Tensor> tensors() const;  // all of them; some share memory, some are undefined
  };

  // Declares `<name>.{q,k,v,o}.weight`, biases and `<name>.{q_norm,k_norm}.weight`.
  Attention(ParameterGroup& group, const std::string& name, const AttentionConfig& config,
            std::shared_ptr<AttentionProduct> product = make_local_attention());

  // x: T [tokens, hidden] -> T [tokens, hidden].
  at::Tensor forward(const at::Tensor& x, const TokenInfo& tokens, Saved& saved) const;

  // dy: T [tokens, hidden] -> dx. `tokens`: as in the forward pass. Frees `saved` as it goes; weight
  // gradients go to `queue`.
  at::Tensor backward_input(Saved& saved, const at::Tensor& dy, const TokenInfo& tokens,
                            WeightGradQueue& queue);

 private:
  // Gradient of the fused qkv output, in a buffer of its own or in the place of saved.qkv.
  at::Tensor qkv_gradient(const Saved& saved, const AttentionGradients& grads, const TokenInfo& tokens);

  AttentionConfig config_;
  std::shared_ptr<AttentionProduct> product_;
  Linear qkv_;
  Linear o_;
  Weight* q_norm_ = nullptr;
  Weight* k_norm_ = nullptr;
};

}  // namespace pptrain::nn

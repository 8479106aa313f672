// Causal grouped-query self-attention block: qkv projection, optional QK-norm, RoPE, scaled dot product,
// output projection. See causal_attention.h for the product.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>

#include "core/kernels/kernels.h"
#include "core/nn/causal_attention.h"
#include "core/nn/linear.h"
#include "core/nn/parameter.h"
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
    at::Tensor x;  // T [batch * seq, hidden]: operand of the qkv weight gradient
    at::Tensor
        qkv;  // T [batch * seq, (heads + 2 kv_heads) * head_dim]; v lives here (q, k too without QK-norm)
    at::Tensor q, k;                  // T [batch, seq, heads | kv_heads, head_dim], after norm and rotation
    at::Tensor q_rstd, k_rstd;        // float32, with QK-norm only
    at::Tensor out;                   // T [batch * seq, heads * head_dim]: operand of the o weight gradient
    at::Tensor logsumexp;             // as the library returns it
    at::Tensor rng_seed, rng_offset;  // CUDA library's, unused without dropout
    at::Tensor positions;             // int32 [batch, seq]
  };

  // Declares `<name>.{q,k,v,o}.weight`, biases and `<name>.{q_norm,k_norm}.weight`.
  Attention(ParameterGroup& group, const std::string& name, const AttentionConfig& config);

  // x: T [batch * seq, hidden] -> T [batch * seq, hidden]. positions: int32 [batch, seq].
  at::Tensor forward(const at::Tensor& x, const at::Tensor& positions, const kernels::RopeTable& rope,
                     Saved& saved) const;

  // dy: T [batch * seq, hidden] -> dx. Frees `saved` as it goes; weight gradients go to `queue`.
  at::Tensor backward_input(Saved& saved, const at::Tensor& dy, const kernels::RopeTable& rope,
                            WeightGradQueue& queue);

 private:
  // Gradient of the fused qkv output, in a buffer of its own or in the place of saved.qkv.
  at::Tensor qkv_gradient(Saved& saved, AttentionGradients grads, const kernels::RopeTable& rope);

  AttentionConfig config_;
  Linear qkv_;
  Linear o_;
  Weight* q_norm_ = nullptr;
  Weight* k_norm_ = nullptr;
};

}  // namespace pptrain::nn

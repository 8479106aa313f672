// Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): keys and values of all heads come from one
// narrow row per token; queries too if q_rank is given. A part of each head is rotated; all heads have the
// same rotated key.
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

// A head's query and key are nope_dim elements that are not rotated, then rope_dim that are.
struct LatentAttentionConfig {
  int64_t hidden = 0;
  int64_t heads = 0;
  int64_t q_rank = 0;  // width of the queries' narrow row; 0: queries come from x itself
  int64_t kv_rank = 0;
  int64_t nope_dim = 0, rope_dim = 0;
  int64_t v_dim = 0;              // at most nope_dim + rope_dim
  bool interleaved = true;        // rotated pairs are (2i, 2i + 1), else (i, i + rope_dim / 2)
  bool bias = false;              // of q_a, kv_a and o
  std::optional<double> scale{};  // of the scores; 1 / sqrt(nope_dim + rope_dim) unless given
  double norm_eps = 1e-6;
  double init_std = 0.02;
  double o_init_std = 0.02;
};

// The layer expands keys and values of every head, in training and in generation. Core attention sees as many
// key-value heads as heads, of nope_dim + rope_dim elements; the values' elements from v_dim on are zeros.
class LatentAttention {
 public:
  struct Saved {
    at::Tensor x;                    // T [share, hidden]: operand of the weight gradients of q_a (q), kv_a
    Norm::Saved q_norm, kv_norm;     // of the narrow rows; q_norm with q_rank only
    at::Tensor q_latent, kv_latent;  // T [share, q_rank | kv_rank], normed: operands of q_b and kv_b
    at::Tensor out;                  // T [tokens, heads * v_dim]: operand of the o weight gradient
    attention::Saved core;

    std::vector<at::Tensor> tensors() const;  // all of them; some share memory, some are undefined
  };

  // Declares `<name>.{kv_a,kv_b,o}.weight`, `<name>.kv_a_norm.weight` and `<name>.q.weight`, or with q_rank
  // `<name>.{q_a,q_b}.weight` and `<name>.q_a_norm.weight`, and biases. kv_a is [kv_rank + rope_dim, hidden],
  // the shared rotated key last; kv_b has, for each head, nope_dim rows of the key, then v_dim rows of the
  // value. The ranks of `tp` shard the heads of q (q_b), kv_b and o, and the rows of x and of the result:
  // T [share, hidden]. Each rank has a copy of the other weights, for its own rows.
  LatentAttention(ParameterGroup& group, const std::string& name, const LatentAttentionConfig& config,
                  std::shared_ptr<attention::CoreAttention> core = attention::make_local_attention(),
                  std::shared_ptr<const TensorGroup> tp = std::make_shared<TensorGroup>());

  // x: T [share, hidden] -> T [share, hidden]. The first rotary table is of rope_dim.
  at::Tensor forward(const at::Tensor& x, const TokenInfo& tokens, Saved& saved) const;

  // dy: T [share, hidden] -> dx. `tokens`: as in the forward pass. Frees `saved` as it goes; weight
  // gradients go to `queue`.
  at::Tensor backward_input(Saved& saved, const at::Tensor& dy, const TokenInfo& tokens,
                            WeightGradQueue& queue);

 private:
  // Queries, not rotated yet: T [tokens, heads, nope_dim + rope_dim].
  at::Tensor project_queries(const at::Tensor& x, int64_t rows, Saved& saved) const;
  // The call's k and v of all heads: `key` is the rotated key that they share, T [tokens, 1, rope_dim].
  void expand(const at::Tensor& kv, const at::Tensor& key, attention::AttentionCall& call) const;
  void rotate(const std::vector<at::Tensor>& heads, const TokenInfo& tokens) const;  // in place
  void rotate_back(const at::Tensor& dy, const at::Tensor& dx, const TokenInfo& tokens) const;
  // From the core's gradients: the gradient of the queries before rotation, T [tokens, heads * (nope_dim +
  // rope_dim)]; of kv_b's result; of this rank's rows of the common key before rotation, T [share, rope_dim].
  at::Tensor query_gradient(const at::Tensor& dq, const TokenInfo& tokens) const;
  at::Tensor kv_gradient(const attention::Gradients& grads) const;
  at::Tensor key_gradient(const at::Tensor& dk, const TokenInfo& tokens) const;
  // Gradients of x by way of the queries, and by way of keys and values.
  at::Tensor queries_backward(Saved& saved, at::Tensor dq, WeightGradQueue& queue);
  at::Tensor keys_backward(Saved& saved, at::Tensor dkv, const at::Tensor& dkey, WeightGradQueue& queue);

  int64_t qk_dim() const { return config_.nope_dim + config_.rope_dim; }

  LatentAttentionConfig config_;  // with this rank's heads
  std::shared_ptr<attention::CoreAttention> core_;
  std::shared_ptr<const TensorGroup> tp_;
  std::optional<Linear> q_a_;
  std::optional<Norm> q_norm_;
  ColumnLinear q_;  // from x, or from the narrow row
  Linear kv_a_;
  Norm kv_norm_;
  ColumnLinear kv_b_;
  RowLinear o_;
};

}  // namespace pptrain::nn

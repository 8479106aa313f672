#include "models/block.h"

#include <utility>

namespace pptrain::models {

Block::Block(nn::ParameterStore& store, const std::string& name, const BlockConfig& config)
    : attention_norm_(store, name + ".attn_norm", config.attention.hidden, config.norm_eps),
      attention_(store, name + ".attn", config.attention),
      mlp_norm_(store, name + ".mlp_norm", config.attention.hidden, config.norm_eps),
      mlp_(store, name + ".mlp", config.attention.hidden, config.intermediate, config.mlp_bias,
           config.init_std, config.init_std) {}

Residual Block::forward(Residual in, const at::Tensor& positions, const kernels::RopeTable& rope,
                        Saved& saved) const {
  auto [x, normed] = attention_norm_.forward(in.stream, std::move(in.delta), saved.attention_norm);
  in.stream.reset();
  at::Tensor attended = attention_.forward(normed, positions, rope, saved.attention);
  auto [sum, mlp_input] = mlp_norm_.forward(x, std::move(attended), saved.mlp_norm);
  at::Tensor out = mlp_.forward(mlp_input, saved.mlp);
  return {std::move(sum), std::move(out)};
}

at::Tensor Block::backward_input(Saved& saved, const at::Tensor& dy, const kernels::RopeTable& rope,
                                 nn::WeightGradQueue& queue) {
  at::Tensor grad = mlp_.backward_input(saved.mlp, dy, queue);
  grad = mlp_norm_.backward(saved.mlp_norm, grad, dy);
  saved.mlp_norm = {};
  const at::Tensor sum_grad = std::move(grad);
  grad = attention_.backward_input(saved.attention, sum_grad, rope, queue);
  grad = attention_norm_.backward(saved.attention_norm, grad, sum_grad);
  saved.attention_norm = {};
  return grad;
}

std::vector<at::Tensor> saved_tensors(const Block::Saved& saved) {
  const auto& attention = saved.attention;
  return {saved.attention_norm.x,
          saved.attention_norm.rstd,
          saved.mlp_norm.x,
          saved.mlp_norm.rstd,
          attention.x,
          attention.qkv,
          attention.q,
          attention.k,
          attention.q_rstd,
          attention.k_rstd,
          attention.out,
          attention.logsumexp,
          saved.mlp.x,
          saved.mlp.gate_up,
          saved.mlp.act};
}

}  // namespace pptrain::models

// The feed-forward behind a block's second norm: its interface and the dense layers; experts.h has another
// layer.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/kernels/activation.h"
#include "core/nn/linear.h"
#include "core/nn/parameter.h"
#include "core/nn/tensor_group.h"
#include "core/nn/token_info.h"
#include "core/nn/weight_grad_queue.h"

namespace pptrain::nn {

// Bytes of the memory behind saved activations or other tensors: whole storages, each counted once. Undefined
// tensors count nothing.
int64_t storage_bytes(std::span<const at::Tensor> tensors);

class FeedForward {
 public:
  virtual ~FeedForward() = default;

  // What the backward pass needs of a forward pass; each kind of layer has its own.
  class Saved {
   public:
    virtual ~Saved() = default;
    virtual std::vector<at::Tensor> tensors() const = 0;  // all that it holds; some may be undefined
  };

  // The forward pass in two parts: all that a backward pass needs, from x T [rows, hidden], then the last
  // GEMM, T [rows, hidden], whose result no backward pass reads. `tokens`: of the microbatch.
  virtual std::unique_ptr<Saved> activate(const at::Tensor& x, const TokenInfo& tokens) const = 0;
  virtual at::Tensor project(const Saved& saved) const = 0;

  // What drop() keeps: either all that needs a GEMM or other ranks to recompute, or nothing. What was decided
  // in the forward pass (routing) stays in any case.
  enum class Keep { products, nothing };

  // Frees all else.
  virtual void drop(Saved& saved, Keep keep) const = 0;

  // Recomputes, with the same bits, what drop() freed, from x as activate() had it. Exception:
  // backward_input() recomputes the operand of the last GEMM, in the pass that takes its gradient.
  virtual void restore(const at::Tensor& x, const TokenInfo& tokens, Saved& saved) const = 0;

  // dy: T [rows, hidden] -> dx. `saved`: as activate() or restore() left it; it is freed on the way. Weight
  // gradients go to `queue`.
  virtual at::Tensor backward_input(Saved& saved, const at::Tensor& dy, const TokenInfo& tokens,
                                    WeightGradQueue& queue) = 0;

  // Rows of documents that went to each expert in the backward passes since the last call, from this rank:
  // int64 [experts]; undefined if there were none, and without experts.
  virtual at::Tensor take_loads() { return {}; }
};

using kernels::Activation;

// down(activation(up(x))), or gated down(activation(gate(x)) * up(x)) (Shazeer, arXiv 2002.05202; with silu:
// SwiGLU).
class Mlp final : public FeedForward {
 public:
  struct Saved;  // tensors(): x, inner, act

  // Declares `<name>.{up,down}.weight` (and biases), gated `<name>.gate.weight` too. The ranks of `tp`
  // shard the inner width: x, the result and their gradients are T [share, hidden].
  Mlp(ParameterGroup& group, const std::string& name, int64_t hidden, int64_t intermediate,
      Activation activation, bool gated, bool bias, double init_std, double down_init_std,
      std::shared_ptr<const TensorGroup> tp = std::make_shared<TensorGroup>());

  std::unique_ptr<FeedForward::Saved> activate(const at::Tensor& x, const TokenInfo& tokens) const override;
  at::Tensor project(const FeedForward::Saved& saved) const override;
  void drop(FeedForward::Saved& saved, Keep keep) const override;
  void restore(const at::Tensor& x, const TokenInfo& tokens, FeedForward::Saved& saved) const override;
  at::Tensor backward_input(FeedForward::Saved& saved, const at::Tensor& dy, const TokenInfo& tokens,
                            WeightGradQueue& queue) override;

 private:
  Activation activation_;
  ColumnLinear inner_;
  RowLinear down_;
};

}  // namespace pptrain::nn

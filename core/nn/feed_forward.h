// The seam behind a block's second norm: SwiGLU, or experts.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "core/nn/token_info.h"
#include "core/nn/weight_grad_queue.h"

namespace pptrain::nn {

class FeedForward {
 public:
  virtual ~FeedForward() = default;

  // What the backward pass needs of a forward pass; each kind of layer has its own.
  class Saved {
   public:
    virtual ~Saved() = default;
    virtual std::vector<at::Tensor> tensors() const = 0;  // all that it holds; some may be undefined
  };
  virtual std::unique_ptr<Saved> make_saved() const = 0;

  // The forward pass in two parts: all that fills `saved`, from x T [rows, hidden], then the last product,
  // T [rows, hidden], whose result no backward pass reads. `tokens`: of the microbatch.
  virtual void activate(const at::Tensor& x, const TokenInfo& tokens, Saved& saved) const = 0;
  virtual at::Tensor project(const Saved& saved) const = 0;

  at::Tensor forward(const at::Tensor& x, const TokenInfo& tokens, Saved& saved) const {
    activate(x, tokens, saved);
    return project(saved);
  }

  // What drop() leaves: all that takes a product, or other ranks, to give again; or nothing. What was decided
  // in the forward pass (routing) stays in any case.
  enum class Keep { products, nothing };

  // Frees the rest.
  virtual void drop(Saved& saved, Keep keep) const = 0;

  // Gives again, with the same bits, what drop() freed, from x as activate() had it; but for the operand of
  // the last product, which backward_input() gives in the pass that takes its gradient.
  virtual void restore(const at::Tensor& x, const TokenInfo& tokens, Saved& saved) const = 0;

  // dy: T [rows, hidden] -> dx. `saved`: as activate() or restore() left it; it is freed on the way. Weight
  // gradients go to `queue`.
  virtual at::Tensor backward_input(Saved& saved, const at::Tensor& dy, const TokenInfo& tokens,
                                    WeightGradQueue& queue) = 0;
};

}  // namespace pptrain::nn

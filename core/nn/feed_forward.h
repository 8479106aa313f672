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
  // T [rows, hidden], whose result no backward pass reads. `tokens`: of the microbatch. What `saved` still
  // holds after a drop is not computed again.
  virtual void activate(const at::Tensor& x, const TokenInfo& tokens, Saved& saved) const = 0;
  virtual at::Tensor project(const Saved& saved) const = 0;

  at::Tensor forward(const at::Tensor& x, const TokenInfo& tokens, Saved& saved) const {
    activate(x, tokens, saved);
    return project(saved);
  }

  // What drop() leaves: all that takes a product, or other ranks, to give again; or nothing. What was decided
  // in the forward pass (routing) stays in any case.
  enum class Keep { products, nothing };

  // Frees the rest, which activate() gives again with the same bits.
  virtual void drop(Saved& saved, Keep keep) const = 0;

  // dy: T [rows, hidden] -> dx. Frees `saved` as it goes; weight gradients go to `queue`.
  virtual at::Tensor backward_input(Saved& saved, const at::Tensor& dy, const TokenInfo& tokens,
                                    WeightGradQueue& queue) = 0;
};

}  // namespace pptrain::nn

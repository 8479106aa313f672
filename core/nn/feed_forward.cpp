#include "core/nn/feed_forward.h"

#include <ATen/ops/empty.h>

#include <optional>
#include <set>
#include <utility>

#include "core/kernels/kernels.h"

namespace pptrain::nn {

struct Mlp::Saved final : FeedForward::Saved {
  at::Tensor x;      // T [share, hidden]
  at::Tensor inner;  // T [rows, this rank's width]: up; with a gate [rows, 2 * this rank's width], gate first
  at::Tensor act;    // T [rows, this rank's width]: operand of the down weight gradient
  std::vector<at::Tensor> tensors() const override { return {x, inner, act}; }
};

namespace {

// They lie side by side in `inner`.
std::vector<LinearPart> parts_of(const std::string& name, bool gated, int64_t intermediate) {
  if (!gated) return {{name + ".up", intermediate}};
  return {{name + ".gate", intermediate}, {name + ".up", intermediate}};
}

// SwiGLU has a kernel of its own.
bool is_swiglu(const at::Tensor& inner, const at::Tensor& act, Activation activation) {
  return activation == Activation::silu && inner.size(1) != act.size(1);
}

void run(const at::Tensor& inner, Activation activation, at::Tensor& act) {
  if (is_swiglu(inner, act, activation)) return kernels::swiglu(inner, act);
  kernels::activate(inner, activation, act);
}

// `inner` becomes its gradient.
void run_backward(const at::Tensor& d_act, at::Tensor& inner, Activation activation,
                  const std::optional<at::Tensor>& act) {
  if (is_swiglu(inner, d_act, activation)) return kernels::swiglu_backward(d_act, inner, inner, act);
  kernels::activate_backward(d_act, inner, activation, inner, act);
}

}  // namespace

Mlp::Mlp(ParameterGroup& group, const std::string& name, int64_t hidden, int64_t intermediate,
         Activation activation, bool gated, bool bias, double init_std, double down_init_std,
         std::shared_ptr<const TensorGroup> tp)
    : activation_(activation),
      inner_(group, hidden, parts_of(name, gated, intermediate), bias, init_std, tp),
      down_(group, intermediate, {name + ".down", hidden}, bias, down_init_std, tp) {}

std::unique_ptr<FeedForward::Saved> Mlp::activate(const at::Tensor& x, const TokenInfo& tokens) const {
  auto saved = std::make_unique<Saved>();
  restore(x, tokens, *saved);
  saved->act = at::empty({saved->inner.size(0), down_.in_features()}, x.options());
  run(saved->inner, activation_, saved->act);
  return saved;
}

at::Tensor Mlp::project(const FeedForward::Saved& saved) const {
  return down_.forward(static_cast<const Saved&>(saved).act);
}

void Mlp::drop(FeedForward::Saved& saved, Keep keep) const {
  auto& s = static_cast<Saved&>(saved);
  at::Tensor inner = std::move(s.inner);
  s = {};
  if (keep == Keep::products) s.inner = std::move(inner);
}

void Mlp::restore(const at::Tensor& x, const TokenInfo& tokens, FeedForward::Saved& saved) const {
  auto& s = static_cast<Saved&>(saved);
  s.x = x;
  if (!s.inner.defined())
    s.inner = inner_.forward(x, tokens.positions.defined() ? tokens.positions.size(0) : x.size(0))[0];
}

// If act was dropped, the kernel recomputes it in the memory of its gradient, which nothing else reads.
at::Tensor Mlp::backward_input(FeedForward::Saved& saved, const at::Tensor& dy, const TokenInfo& /*tokens*/,
                               WeightGradQueue& queue) {
  auto& s = static_cast<Saved&>(saved);
  at::Tensor d_inner = std::move(s.inner);
  if (s.act.defined()) {
    const at::Tensor d_act = down_.backward(std::move(s.act), dy, queue);
    run_backward(d_act, d_inner, activation_, std::nullopt);
  } else {
    at::Tensor all;
    at::Tensor act = down_.backward_input(dy, d_inner.size(0), queue, all);
    run_backward(act, d_inner, activation_, act);
    down_.backward_weight(std::move(act), dy, all, queue);
  }
  return inner_.backward(std::move(s.x), {std::move(d_inner)}, queue);
}

int64_t storage_bytes(std::span<const at::Tensor> tensors) {
  std::set<const void*> seen;
  int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined() && seen.insert(tensor.storage().unsafeGetStorageImpl()).second) {
      bytes += static_cast<int64_t>(tensor.storage().nbytes());
    }
  }
  return bytes;
}

}  // namespace pptrain::nn

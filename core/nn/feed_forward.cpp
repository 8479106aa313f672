#include "core/nn/feed_forward.h"

#include <ATen/ops/empty.h>

#include <optional>
#include <set>
#include <utility>

#include "core/kernels/kernels.h"

namespace pptrain::nn {
namespace {

SwiGlu::Saved& own(FeedForward::Saved& saved) {
  return static_cast<SwiGlu::Saved&>(saved);
}

}  // namespace

SwiGlu::SwiGlu(ParameterGroup& group, const std::string& name, int64_t hidden, int64_t intermediate,
               bool bias, double init_std, double down_init_std, std::shared_ptr<const Region> region)
    : gate_up_(group, hidden, {{name + ".gate", intermediate}, {name + ".up", intermediate}}, bias, init_std,
               region),
      down_(group, intermediate, {name + ".down", hidden}, bias, down_init_std, region) {}

void SwiGlu::activate(const at::Tensor& x, const TokenInfo& tokens, FeedForward::Saved& saved) const {
  restore(x, tokens, saved);
  Saved& s = own(saved);
  s.act = at::empty({s.gate_up.size(0), down_.in_features()}, x.options());
  kernels::swiglu(s.gate_up, s.act);
}

at::Tensor SwiGlu::project(const FeedForward::Saved& saved) const {
  return down_.forward(static_cast<const Saved&>(saved).act);
}

void SwiGlu::drop(FeedForward::Saved& saved, Keep keep) const {
  Saved& s = own(saved);
  at::Tensor gate_up = std::move(s.gate_up);
  s = {};
  if (keep == Keep::products) s.gate_up = std::move(gate_up);
}

void SwiGlu::restore(const at::Tensor& x, const TokenInfo& tokens, FeedForward::Saved& saved) const {
  Saved& s = own(saved);
  s.x = x;
  if (!s.gate_up.defined())
    s.gate_up = gate_up_.forward(x, tokens.positions.defined() ? tokens.positions.size(0) : x.size(0))[0];
}

// Where act was dropped, the kernel gives it again in the memory of its gradient, which nothing else reads.
at::Tensor SwiGlu::backward_input(FeedForward::Saved& saved, const at::Tensor& dy,
                                  const TokenInfo& /*tokens*/, WeightGradQueue& queue) {
  Saved& s = own(saved);
  at::Tensor d_gate_up = std::move(s.gate_up);
  if (s.act.defined()) {
    const at::Tensor d_act = down_.backward(std::move(s.act), dy, queue);
    kernels::swiglu_backward(d_act, d_gate_up, d_gate_up, std::nullopt);
  } else {
    RowLinear::InputGradient down = down_.backward_input(dy, d_gate_up.size(0), queue);
    at::Tensor act = std::move(down.dx);
    kernels::swiglu_backward(act, d_gate_up, d_gate_up, act);
    down_.backward_weight(std::move(act), dy, down, queue);
  }
  return gate_up_.backward(std::move(s.x), {std::move(d_gate_up)}, queue);
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

#include "core/nn/weight_grad_queue.h"

#include <utility>

#include "core/nn/linear.h"

namespace pptrain::nn {

void WeightGradQueue::push(Linear& layer, at::Tensor x, at::Tensor dy) {
  if (mode_ == Mode::immediate) {
    layer.backward_weight(x, dy);
    return;
  }
  pending_.push_back({&layer, std::move(x), std::move(dy)});
}

void WeightGradQueue::run() {
  for (Pending& pending : pending_) {
    pending.layer->backward_weight(pending.x, pending.dy);
    pending.x.reset();
    pending.dy.reset();
  }
  pending_.clear();
}

std::vector<at::Tensor> WeightGradQueue::operands() const {
  std::vector<at::Tensor> tensors;
  for (const Pending& pending : pending_) tensors.insert(tensors.end(), {pending.x, pending.dy});
  return tensors;
}

}  // namespace pptrain::nn

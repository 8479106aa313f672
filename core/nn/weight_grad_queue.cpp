#include "core/nn/weight_grad_queue.h"

#include <utility>

namespace pptrain::nn {

void WeightGradQueue::push(HasWeightGradient& layer, std::vector<at::Tensor> operands) {
  if (mode_ == Mode::immediate) {
    layer.backward_weight(operands);
    return;
  }
  pending_.push_back({&layer, std::move(operands)});
}

void WeightGradQueue::run() {
  for (Pending& pending : pending_) {
    pending.layer->backward_weight(pending.operands);
    pending.operands.clear();
  }
  pending_.clear();
}

std::vector<at::Tensor> WeightGradQueue::operands() const {
  std::vector<at::Tensor> tensors;
  for (const Pending& pending : pending_)
    tensors.insert(tensors.end(), pending.operands.begin(), pending.operands.end());
  return tensors;
}

}  // namespace pptrain::nn

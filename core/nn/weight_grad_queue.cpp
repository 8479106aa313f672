#include "core/nn/weight_grad_queue.h"

#include <utility>

namespace pptrain::nn {

void WeightGradQueue::push(HasWeightGradient& layer, std::vector<at::Tensor> operands) {
  if (mode_ == Mode::immediate) {
    layer.backward_weight(operands);
    return;
  }
  if (mode_ == Mode::beside) mark_ = side_->run([&layer, operands] { layer.backward_weight(operands); });
  pending_.push_back({&layer, std::move(operands)});
}

void WeightGradQueue::run() {
  for (Pending& pending : pending_) {
    pending.layer->backward_weight(pending.operands);
    pending.operands.clear();
  }
  pending_.clear();
}

void WeightGradQueue::join() {
  if (pending_.empty()) return;
  side_->join(mark_);
  pending_.clear();
}

std::vector<at::Tensor> WeightGradQueue::operands() const {
  std::vector<at::Tensor> tensors;
  for (const Pending& pending : pending_)
    tensors.insert(tensors.end(), pending.operands.begin(), pending.operands.end());
  return tensors;
}

}  // namespace pptrain::nn

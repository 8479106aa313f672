#include "core/nn/weight_grad_queue.h"

#include <utility>

#include "core/kernels/expert_kernels.h"
#include "core/kernels/kernels.h"

namespace pptrain::nn {

void add_weight_gradient(Weight& weight, const at::Tensor& dy, const at::Tensor& x) {
  const bool first = std::exchange(weight.grad_is_unset, false);
  (first ? kernels::weight_gradient : kernels::accumulate_weight_gradient)(dy, x, weight.grad);
}

void add_grouped_weight_gradient(Weight& weight, const GroupedRows& dy, const GroupedRows& x, int64_t each,
                                 const at::Tensor& ends) {
  const bool first = std::exchange(weight.grad_is_unset, false);
  at::Tensor by_expert = weight.grad.view({ends.size(0), dy.rows.size(1), x.rows.size(1)});
  (first ? kernels::grouped_weight_gradient : kernels::accumulate_grouped_weight_gradient)(
      dy.rows, dy.order, x.rows, x.order, each, ends, by_expert);
}

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

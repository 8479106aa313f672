#include "core/nn/weight_gradient.h"

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

}  // namespace pptrain::nn

// How layers add to the gradients of weights that matrix products alone write (Weight::grad_by_products): the
// first product since ParameterGroup::start_grad overwrites, so that nobody fills the gradient with zeros
// first.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "core/nn/parameter.h"

namespace pptrain::nn {

// weight.grad += dy^T x. Operands as kernels::accumulate_weight_gradient takes them.
void add_weight_gradient(Weight& weight, const at::Tensor& dy, const at::Tensor& x);

// The same of a weight for each of `experts`, stacked along dim 0. Operands as
// kernels::accumulate_grouped_weight_gradient takes them.
struct GroupedRows {
  const at::Tensor& rows;
  std::optional<at::Tensor> order;
};
void add_grouped_weight_gradient(Weight& weight, const GroupedRows& dy, const GroupedRows& x, int64_t each,
                                 const at::Tensor& ends);

}  // namespace pptrain::nn

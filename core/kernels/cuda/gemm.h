// Products of gemm.cu that others are made of.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "core/kernels/cuda/blas.h"

namespace pptrain::kernels::cuda {

using at::Tensor;

void matmul(const Tensor& a, const Tensor& b, Tensor& out);
void linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias, Tensor& out);

// weight_grad = dy^T x, or += it. As kernels::weight_gradient takes them, with rows.
void add_outer_products(const Tensor& dy, const Tensor& x, Existing existing, Tensor& weight_grad);

}  // namespace pptrain::kernels::cuda

// GEMMs of gemm.cu that those of experts are made of, as kernels.h declares them.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace pptrain::kernels::cuda {

using at::Tensor;

void matmul(const Tensor& a, const Tensor& b, Tensor& out);
void linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias, Tensor& out);
void accumulate_weight_gradient(const Tensor& dy, const Tensor& x, Tensor& weight_grad);
void weight_gradient(const Tensor& dy, const Tensor& x, Tensor& weight_grad);

}  // namespace pptrain::kernels::cuda

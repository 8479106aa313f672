// The CPU's implementations of kernels that other kernels are made of.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace pptrain::kernels::cpu {

void matmul(const at::Tensor& a, const at::Tensor& b, at::Tensor& result);
void linear(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
            at::Tensor& result);
// out = beta c + alpha a b, summed in float32 and rounded once. a: T [rows, inner]; b: T [inner, cols]; c,
// out: T [rows, cols]. All dense. Not in the table of kernels: a GPU's library has it.
void add_matmul(const at::Tensor& c, double beta, const at::Tensor& a, const at::Tensor& b, double alpha,
                at::Tensor& result);
void accumulate_weight_gradient(const at::Tensor& dy, const at::Tensor& x, at::Tensor& weight_grad);
void weight_gradient(const at::Tensor& dy, const at::Tensor& x, at::Tensor& weight_grad);

void gather_rows(const at::Tensor& x, const at::Tensor& order, int64_t each, at::Tensor& result);

}  // namespace pptrain::kernels::cpu

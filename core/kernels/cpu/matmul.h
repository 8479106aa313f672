// Functions of the CPU's back end that are called from more than one file.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace pptrain::kernels::cpu {

// out = beta c + alpha a b, summed in float32 and rounded once. a: T [rows, inner]; b: T [inner, cols]; c,
// out: T [rows, cols]. All dense. Not in the table of kernels: a GPU's library has it.
void add_matmul(const at::Tensor& c, double beta, const at::Tensor& a, const at::Tensor& b, double alpha,
                at::Tensor& result);

// The kernel of that name (experts.cpp).
void gather_rows(const at::Tensor& x, const at::Tensor& order, int64_t each, at::Tensor& result);

}  // namespace pptrain::kernels::cpu

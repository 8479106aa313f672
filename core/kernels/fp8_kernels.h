// GEMMs in FP8: operands in E4M3 (e4m3.h) with a power of two for each row, so that a row's bits depend on
// the row alone, and number times scale is a bfloat16. The conventions are those of kernels.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "core/kernels/kernel.h"

namespace pptrain::kernels {

using at::Tensor;

// The rows of x, rounded. x: bfloat16 [rows, cols], whose rows may lie apart; values: E4M3 [rows, cols];
// scales: float32 [rows].
inline Kernel<void(const Tensor& x, Tensor& values, Tensor& scales)> quantize_rows{"quantize_rows"};

// The columns of x, rounded, as the rows of `values`. x: bfloat16 [rows, cols]; values: E4M3 [cols, rows];
// scales: float32 [cols].
inline Kernel<void(const Tensor& x, Tensor& values, Tensor& scales)> quantize_columns{"quantize_columns"};

// out = a b^T + bias, summed in float32 and rounded once. a: E4M3 [rows, inner] with its scales, float32
// [rows]; b: E4M3 [cols, inner] with its scales, float32 [cols]; bias: bfloat16 [cols]; out: bfloat16 [rows,
// cols]. On GPUs cols and inner are multiples of 16, and sums have about 14 bits within the tensor cores.
inline Kernel<void(const Tensor& a, const Tensor& a_scales, const Tensor& b, const Tensor& b_scales,
                   const std::optional<Tensor>& bias, Tensor& out)>
    fp8_linear{"fp8_linear"};

// weight_grad = a b^T, or if `adds` weight_grad += a b^T, summed in float32. a: E4M3 [out, rows], columns of
// the output's gradient, with their scales, float32 [out]; b: E4M3 [in, rows], columns of the input, with
// their scales, float32 [in]; weight_grad: float32 [out, in]. Of the CPU alone.
inline Kernel<void(const Tensor& a, const Tensor& a_scales, const Tensor& b, const Tensor& b_scales,
                   bool adds, Tensor& weight_grad)>
    fp8_weight_gradient{"fp8_weight_gradient"};

}  // namespace pptrain::kernels

// Matrix products with a long inner dimension, in bfloat16: the input gradients of the head and of wide
// projections.
#pragma once

#include <ATen/core/Tensor.h>

namespace pptrain::kernels::cpu {

// out = a b where MKL is the faster library for the shape (measured: a third faster than oneDNN at 256 x
// 32000 x 512); otherwise returns false and does nothing. The choice depends on type, shapes and the
// processor's maker alone.
bool long_matmul(const at::Tensor& a, const at::Tensor& b, at::Tensor& out);

}  // namespace pptrain::kernels::cpu

// The door to cuBLASLt, as cuda_api.h is the one to the runtime.
#pragma once

#include "core/kernels/products.h"

namespace pptrain::kernels::cuda {

// Row-major matrices in device memory. The rows of a lie product.stride elements apart; all else is dense.
struct ProductOperands {
  const void* a = nullptr;
  const void* b = nullptr;
  const void* bias = nullptr;  // product.type [n], where product.bias
  void* out = nullptr;         // [m, n]; float32 of ProductLayout::tn, else of product.type
};

// What becomes of the result that was there: it is not read, or added to.
enum class Existing { overwritten, added };

// out = op(a) op(b), plus the bias and what was there where wanted: all summed in float32 and rounded once,
// on the current stream of the current device. float32 operands use TF32 only where at::globalContext()
// allows it. The same bits for the same product, whatever the stream and the thread, as long as addresses are
// aligned to 16 bytes (less aligned ones may have an algorithm of their own). m, n, k > 0. Errors: Error with
// cuBLASLt's status.
void multiply(const Product& product, const ProductOperands& operands, Existing existing);

// Whether multiply() takes this product's bias. Where cuBLASLt has no such algorithm, the caller writes the
// bias into the result and adds to it, which has the same rounding.
bool takes_bias(const Product& product, const ProductOperands& operands);

}  // namespace pptrain::kernels::cuda

// Orthogonalisation of a matrix by products alone.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace pptrain::optim {

// U V^T of x = U S V^T, nearly: five steps of the quintic Newton-Schulz iteration of Jordan et al., Muon
// (2024), on x over its Frobenius norm, with their coefficients (3.4445, -4.7750, 2.0315), which leave
// singular values between about 0.7 and 1.2. A zero x stays zero. x: float32 or bfloat16 [rows, cols], in
// which all is computed. The bits depend on x, its shape and type, and the number of threads alone.
at::Tensor orthogonalise(at::Tensor x);

// Operations of the products above.
double orthogonalise_flops(int64_t rows, int64_t cols);

// Bytes held at the peak, x and the result included, for `element` bytes an element.
int64_t orthogonalise_bytes(int64_t rows, int64_t cols, int64_t element);

}  // namespace pptrain::optim

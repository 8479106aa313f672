// The door to cuBLAS, as cuda_api.h is the one to the runtime.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace pptrain::kernels::cuda {

// c += op(a) * op(b) in BLAS's column-major sense: op(a) is [m, k], op(b) is [k, n], c is [m, n]; a leading
// dimension is the distance between columns of the stored matrix. `type`: of a and b; c and all sums are
// float32.
struct GemmShape {
  bool transpose_a;
  bool transpose_b;
  int64_t m;
  int64_t n;
  int64_t k;
  int64_t lda;
  int64_t ldb;
  int64_t ldc;
};

// On the current stream of the current device. float32 inputs use TF32 only where at::globalContext() allows
// it. Errors: Error with cuBLAS's status.
void accumulate_gemm(const GemmShape& shape, at::ScalarType type, const void* a, const void* b, float* c);

}  // namespace pptrain::kernels::cuda

#include "core/kernels/cuda/blas.h"

#include <ATen/cuda/CUDAContextLight.h>

#include <string>

#include "core/base/error.h"

namespace pptrain::kernels::cuda {

void accumulate_gemm(const GemmShape& shape, at::ScalarType type, const void* a, const void* b, float* c) {
  // ATen's handle is bound to the current stream, has a workspace of its own (which keeps cuBLAS
  // deterministic) and the math mode that at::globalContext().allowTF32CuBLAS() asks for.
  cublasHandle_t const handle = at::cuda::getCurrentCUDABlasHandle();
  const cudaDataType_t data_type = type == at::kBFloat16 ? CUDA_R_16BF : CUDA_R_32F;
  const float one = 1.0F;
  const cublasStatus_t status = cublasGemmEx_64(
      handle, shape.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N, shape.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N,
      shape.m, shape.n, shape.k, &one, a, data_type, shape.lda, b, data_type, shape.ldb, &one, c, CUDA_R_32F,
      shape.ldc, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
  if (status != CUBLAS_STATUS_SUCCESS) {
    throw Error(std::string("cublasGemmEx for a weight gradient of ") + std::to_string(shape.n) + " x " +
                std::to_string(shape.m) + " over " + std::to_string(shape.k) +
                " rows: " + cublasGetStatusString(status));
  }
}

}  // namespace pptrain::kernels::cuda

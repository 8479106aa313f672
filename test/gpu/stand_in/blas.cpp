// cuBLAS and cuBLASLt: a handle, one algorithm for all GEMMs, and GEMMs that compute nothing. cuBLASLt's
// descriptors are the real ones.
#include <cublasLt.h>
#include <cublas_v2.h>

#include <initializer_list>
#include <string>

#include "test/gpu/stand_in/journal.h"

namespace {

using namespace stand_in;

char a_handle;

cublasStatus_t gemm(cudaStream_t stream, const char* name, std::initializer_list<const void*> matrices) {
  for (const void* matrix : matrices) {
    if (is_on_device(matrix)) continue;
    refuse(cudaErrorInvalidValue, std::string(name) + " of memory that is not the device's");
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  write("work " + name_of(stream) + " gemm " + name);
  return CUBLAS_STATUS_SUCCESS;
}

thread_local cudaStream_t blas_stream = nullptr;  // a handle serves one thread in LibTorch

}  // namespace

extern "C" {

cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
  *handle = reinterpret_cast<cublasHandle_t>(&a_handle);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy_v2(cublasHandle_t) {
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream_v2(cublasHandle_t, cudaStream_t stream) {
  blas_stream = stream;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t, void*, size_t) {
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetMathMode(cublasHandle_t, cublasMath_t) {
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetMathMode(cublasHandle_t, cublasMath_t* mode) {
  *mode = CUBLAS_DEFAULT_MATH;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGemmEx(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int, const void*,
                            const void* a, cudaDataType, int, const void* b, cudaDataType, int, const void*,
                            void* c, cudaDataType, int, cublasComputeType_t, cublasGemmAlgo_t) {
  return gemm(blas_stream, "cublasGemmEx", {a, b, c});
}

cublasStatus_t cublasSgemm_v2(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int,
                              const float*, const float* a, int, const float* b, int, const float*, float* c,
                              int) {
  return gemm(blas_stream, "cublasSgemm", {a, b, c});
}

// LibTorch asks cuBLASLt if a bias is added.
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatmulPreference_t, int,
                                              cublasLtMatmulHeuristicResult_t* results, int* count) {
  *count = 1;
  results[0] = {};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t, const void*, const void* a,
                              cublasLtMatrixLayout_t, const void* b, cublasLtMatrixLayout_t, const void*,
                              const void* c, cublasLtMatrixLayout_t, void* d, cublasLtMatrixLayout_t,
                              const cublasLtMatmulAlgo_t*, void*, size_t, cudaStream_t stream) {
  return gemm(stream, "cublasLtMatmul", {a, b, c, d});
}

}  // extern "C"

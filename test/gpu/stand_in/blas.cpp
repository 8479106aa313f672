// cuBLAS and cuBLASLt: handles, three algorithms for each product, and products that are not computed.
// Descriptors are the libraries' own.
#include <cublasLt.h>
#include <cublas_v2.h>

#include <algorithm>
#include <string>

#include "test/gpu/stand_in/journal.h"

namespace {

using namespace stand_in;

char a_handle;

cublasStatus_t product(cudaStream_t stream, const char* name) {
  write("work " + name_of(stream) + " product " + name);
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
                            const void*, cudaDataType, int, const void*, cudaDataType, int, const void*,
                            void*, cudaDataType, int, cublasComputeType_t, cublasGemmAlgo_t) {
  return product(blas_stream, "cublasGemmEx");
}

cublasStatus_t cublasSgemm_v2(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int,
                              const float*, const float*, int, const float*, int, const float*, float*, int) {
  return product(blas_stream, "cublasSgemm");
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = reinterpret_cast<cublasLtHandle_t>(&a_handle);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatmulPreference_t, int most,
                                              cublasLtMatmulHeuristicResult_t* results, int* count) {
  *count = std::min(most, 3);
  for (int i = 0; i < *count; ++i) {
    results[i] = {};
    results[i].algo.data[0] = static_cast<uint64_t>(i) + 1;
    results[i].workspaceSize = static_cast<size_t>(i) << 20;
    results[i].wavesCount = 1;
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                                       cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                       const cublasLtMatmulAlgo_t* algorithm,
                                       cublasLtMatmulHeuristicResult_t* result) {
  *result = {};
  result->algo = *algorithm;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t, const void*, const void* a,
                              cublasLtMatrixLayout_t, const void* b, cublasLtMatrixLayout_t, const void*,
                              const void* c, cublasLtMatrixLayout_t, void* d, cublasLtMatrixLayout_t,
                              const cublasLtMatmulAlgo_t*, void* workspace, size_t workspace_bytes,
                              cudaStream_t stream) {
  const bool room = workspace_bytes == 0 || is_on_device(workspace);
  if (!room || !is_on_device(a) || !is_on_device(b) || !is_on_device(c) || !is_on_device(d)) {
    refuse(cudaErrorInvalidValue, "cublasLtMatmul of memory that is not the device's");
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  return product(stream, "cublasLtMatmul");
}

}  // extern "C"

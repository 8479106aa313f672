#include "core/kernels/cpu/gemm.h"

// LibTorch for x86-64 is linked with MKL and exports these; they are null elsewhere. MKL's names: SGEMM is
// BLAS's, with column-major matrices.
extern "C" {
[[gnu::weak]] void cblas_gemm_bf16bf16f32(int layout, int op_a, int op_b, int m, int n, int k, float alpha,
                                          const uint16_t* a, int lda, const uint16_t* b, int ldb, float beta,
                                          float* c, int ldc);
[[gnu::weak]] void SGEMM(const char* op_a, const char* op_b, const int* m, const int* n, const int* k,
                         const float* alpha, const float* a, const int* lda, const float* b, const int* ldb,
                         const float* beta, float* c, const int* ldc);
}

namespace pptrain::kernels::cpu {

bool has_gemm() {
  return cblas_gemm_bf16bf16f32 != nullptr && SGEMM != nullptr;
}

template <>
void gemm(Op op_a, Op op_b, GemmShape s, Matrix<const uint16_t> a, Matrix<const uint16_t> b, float beta,
          Matrix<float> c) {
  constexpr int kRowMajor = 101;
  cblas_gemm_bf16bf16f32(kRowMajor, static_cast<int>(op_a), static_cast<int>(op_b), static_cast<int>(s.m),
                         static_cast<int>(s.n), static_cast<int>(s.k), 1.0F, a.data,
                         static_cast<int>(a.stride), b.data, static_cast<int>(b.stride), beta, c.data,
                         static_cast<int>(c.stride));
}

// A row-major matrix is the transpose of the column-major one in the same memory: c^T = op_b(b)^T op_a(a)^T.
template <>
void gemm(Op op_a, Op op_b, GemmShape s, Matrix<const float> a, Matrix<const float> b, float beta,
          Matrix<float> c) {
  const auto letter = [](Op op) { return op == Op::none ? "N" : "T"; };
  const int m = static_cast<int>(s.m), n = static_cast<int>(s.n), k = static_cast<int>(s.k);
  const int lda = static_cast<int>(a.stride), ldb = static_cast<int>(b.stride),
            ldc = static_cast<int>(c.stride);
  const float alpha = 1;
  SGEMM(letter(op_b), letter(op_a), &n, &m, &k, &alpha, b.data, &ldb, a.data, &lda, &beta, c.data, &ldc);
}

}  // namespace pptrain::kernels::cpu

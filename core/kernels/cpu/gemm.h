// Matrix products with float32 results from MKL, for where ATen has none that accumulates or reads strided
// heads.
#pragma once

#include <cstdint>

namespace pptrain::kernels::cpu {

// Whether the LibTorch in use brings MKL: that for x86-64 does, others may not.
bool has_gemm();

enum class Op : int { none = 111, transpose = 112 };  // as CBLAS numbers them

struct GemmShape {
  int64_t m, n, k;
};

// A row-major matrix; `stride` is the distance of its rows, in elements.
template <class T>
struct Matrix {
  T* data;
  int64_t stride;
};

// c = op_a(a) op_b(b) + beta c, summed in float32. op_a(a): [m, k]; op_b(b): [k, n]; c: [m, n]. T is float or
// uint16_t (bfloat16). Needs has_gemm() and sizes below 2^31.
template <class T>
void gemm(Op op_a, Op op_b, GemmShape shape, Matrix<const T> a, Matrix<const T> b, float beta,
          Matrix<float> c);

}  // namespace pptrain::kernels::cpu

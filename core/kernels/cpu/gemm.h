// Matrix products with float32 results, for where ATen has none that accumulates or reads strided heads:
// MKL's, or our own of bfloat16 where MKL would convert to float32 first.
#pragma once

#include <cstdint>

namespace pptrain::kernels::cpu {

// Whether the LibTorch in use brings MKL: that for x86-64 does, others may not.
bool has_gemm();

// Whether products of bfloat16 are our own. MKL has fast ones for Intel's processors alone: on an AMD EPYC of
// family 25 it makes 100 GFLOP/s a core, the rate of float32, where ours makes 190 and oneDNN (which does not
// accumulate) 220.
bool has_own_bf16_gemm();

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
// uint16_t (bfloat16). Needs has_gemm() and sizes below 2^31. The order of sums depends on the shape alone.
template <class T>
void gemm(Op op_a, Op op_b, GemmShape shape, Matrix<const T> a, Matrix<const T> b, float beta,
          Matrix<float> c);

// Our own of bfloat16, with the pieces of an instruction set that has them.
struct Bf16Gemm;
void packed_gemm(const Bf16Gemm& own, Op op_a, Op op_b, GemmShape shape, Matrix<const uint16_t> a,
                 Matrix<const uint16_t> b, float beta, Matrix<float> c);

}  // namespace pptrain::kernels::cpu

// GEMMs: our own, and MKL's if that is faster.
#pragma once

#include <c10/util/FunctionRef.h>

#include <cstdint>

#include "core/kernels/cost.h"
#include "core/kernels/cpu/amx.h"
#include "core/kernels/cpu/loops.h"

namespace pptrain::kernels::cpu {

enum class Op : int { none = 111, transpose = 112 };  // as CBLAS numbers them

// Whether a result overwrites the old values, unread, or is added to them.
enum class Result { written, added };

// c (+)= op_a(a) op_b(b), summed in float32. op_a(a): [m, k]; op_b(b): [k, n]; c: [m, n]. T is float or
// uint16_t (bfloat16); k > 0. The order of an element's sum depends on the shape alone; in our own GEMM on k
// alone.
template <class T>
void gemm(Op op_a, Op op_b, GemmShape shape, Matrix<const T> a, Matrix<const T> b, Result result,
          Matrix<float> c);

// Whether gemm<T> is our own GEMM. README.md says what is measured and what is not.
template <class T>
bool has_own_gemm();

// Whether the loops in use multiply bfloat16 by instructions of the processor. If not, libraries convert
// operands to float32 at each GEMM or use plain loops, and packed_rounded_gemm is faster than they are.
bool multiplies_bfloat16();

// Whether MKL's GEMM of bfloat16 is there and made for this processor.
bool has_mkl_bfloat16();

// Our own GEMM, with the loops of one instruction set.
template <class T>
void packed_gemm(const GemmLoops<T>& loops, Op op_a, Op op_b, GemmShape shape, Matrix<const T> a,
                 Matrix<const T> b, Result result, Matrix<float> c);

// Rows [m, m + rows) and columns [n, n + columns) of a result.
struct Range {
  int64_t m, rows, n, columns;
};

// out = op_a(a) op_b(b), summed in float32 and rounded once; finish(range, sums) may change a block's sums,
// float [rows, columns], before that.
template <class T>
void packed_rounded_gemm(const TypedLoops<T>& loops, Op op_a, Op op_b, GemmShape shape, Matrix<const T> a,
                         Matrix<const T> b, Matrix<T> out,
                         c10::function_ref<void(const Range&, float*)> finish);

// GEMMs of bfloat16 rows with one expert's weight, on tile registers.
namespace amx {

// out [rows, n] = x [rows, k] op(weight), summed in float32, rounded once: the weight is [k, n], or [n, k]
// with Op::transpose. out's rows are n apart.
void product(const Rows& x, int64_t rows, int64_t k, const uint16_t* weight, Op op, int64_t n, uint16_t* out);

// grad [m, n] += or = dy^T x over `rows` rows, of which there is one at least. dy has m columns, x has n.
void accumulate_outer(const Rows& dy, const Rows& x, int64_t rows, int64_t m, int64_t n, Result result,
                      float* grad);

}  // namespace amx

}  // namespace pptrain::kernels::cpu

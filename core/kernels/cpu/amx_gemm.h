// Products of bfloat16 rows with one expert's weight, on tile registers (amx.h).
#pragma once

#include <cstdint>

#include "core/kernels/cpu/amx.h"
#include "core/kernels/cpu/gemm.h"

namespace pptrain::kernels::cpu::amx {

// out [rows, n] = x [rows, k] op(weight), summed in float32, rounded once: the weight is [k, n], or [n, k]
// with Op::transpose. out's rows are n apart.
void product(const Rows& x, int64_t rows, int64_t k, const uint16_t* weight, Op op, int64_t n, uint16_t* out);

// grad [m, n] += or = dy^T x over `rows` rows, of which there is one at least. dy has m columns, x has n.
void accumulate_outer(const Rows& dy, const Rows& x, int64_t rows, int64_t m, int64_t n, Result result,
                      float* grad);

}  // namespace pptrain::kernels::cpu::amx

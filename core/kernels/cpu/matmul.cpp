#include <limits>
#include <vector>

#include "core/kernels/backend.h"
#include "core/kernels/cpu/gemm.h"
#include "core/kernels/cpu/loops.h"
#include "core/kernels/cpu/parallel.h"
#include "core/kernels/cpu/typed.h"

namespace pptrain::kernels::cpu {
namespace {

bool fits_int(int64_t n) { return n <= std::numeric_limits<int>::max(); }

}  // namespace

void accumulate_weight_gradient(const Tensor& dy, const Tensor& x, Tensor& weight_grad) {
  const int64_t rows = dy.size(0);
  const int64_t outputs = dy.size(1);
  const int64_t inputs = x.size(1);
  if (!has_gemm() || !fits_int(rows) || !fits_int(outputs) || !fits_int(inputs)) {
    weight_grad.addmm_(dy.to(at::kFloat).t(), x.to(at::kFloat));
    return;
  }
  by_type(dy, [&]<class T>(T) {
    gemm<T>(Op::transpose, Op::none, {.m = outputs, .n = inputs, .k = rows}, {in<T>(dy), outputs}, {in<T>(x), inputs},
            1.0F, {out<float>(weight_grad), inputs});
  });
}

void accumulate_bias_gradient(const Tensor& dy, Tensor& bias_grad) {
  const int64_t rows = dy.size(0);
  const int64_t cols = dy.size(1);
  std::vector<float> sums(static_cast<size_t>(cols));
  by_type(dy, [&]<class T>(T) {
    parallel_for(cols, row_grain(rows), [&](int64_t first, int64_t last) {
      typed<T>(loops()).column_sums(in<T>(dy), sums.data(), rows, cols, first, last);
    });
  });
  float* grad = out<float>(bias_grad);
  for (int64_t i = 0; i < cols; ++i) {
    grad[i] += sums[static_cast<size_t>(i)];
  }
}

}  // namespace pptrain::kernels::cpu

// FP8 on processors, which multiply no E4M3: operands become the bfloat16 that they stand for, exactly, and
// meet in the GEMM of that type.
#include <ATen/ops/empty.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "core/kernels/cpu/parallel.h"
#include "core/kernels/cpu/typed.h"
#include "core/kernels/e4m3.h"
#include "core/kernels/fp8_kernels.h"
#include "core/kernels/kernels.h"

// Functions compiled for several instruction sets, which give the same bits; sanitizers cannot start with
// them.
#if defined(__x86_64__) && !defined(PPTRAIN_SANITIZED)
#define PPTRAIN_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define PPTRAIN_CLONES
#endif

namespace pptrain::kernels::cpu {
namespace {

constexpr uint16_t magnitude_bits = 0x7FFF;  // of a bfloat16

float scale_of(uint16_t largest_magnitude) {
  return e4m3::scale_of(uint32_t{largest_magnitude} << 16);
}

PPTRAIN_CLONES uint16_t largest_magnitude(const uint16_t* row, int64_t size) {
  uint16_t largest = 0;
  for (int64_t i = 0; i < size; ++i)
    largest = std::max(largest, static_cast<uint16_t>(row[i] & magnitude_bits));
  return largest;
}

PPTRAIN_CLONES void round_row(const uint16_t* row, float factor, uint8_t* to, int64_t size) {
  for (int64_t i = 0; i < size; ++i) to[i] = e4m3::rounded(to_float(row[i]) * factor);
}

// Number times scale: a bfloat16, since a number has 4 significant bits and a scale is a power of 2.
PPTRAIN_CLONES void widen_row(const uint8_t* row, float scale, uint16_t* to, int64_t size) {
  for (int64_t i = 0; i < size; ++i)
    to[i] = static_cast<uint16_t>(std::bit_cast<uint32_t>(e4m3::value(row[i]) * scale) >> 16);
}

void quantize_rows(const Tensor& x, Tensor& values, Tensor& scales) {
  const int64_t cols = x.size(1);
  parallel_for(x.size(0), row_grain(cols), [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      const uint16_t* const from = in<uint16_t>(x) + row * x.stride(0);
      const float scale = scale_of(largest_magnitude(from, cols));
      out<float>(scales)[row] = scale;
      round_row(from, e4m3::inverse(scale), out<uint8_t>(values) + row * cols, cols);
    }
  });
}

void quantize_columns(const Tensor& x, Tensor& values, Tensor& scales) {
  constexpr int64_t tile = 64;  // columns that a thread takes at a time: two cache lines of a row
  const int64_t rows = x.size(0), cols = x.size(1);
  parallel_for((cols + tile - 1) / tile, row_grain(rows * tile), [&](int64_t first, int64_t last) {
    for (int64_t at = first; at < last; ++at) {
      const int64_t begin = at * tile, width = std::min(tile, cols - begin);
      const uint16_t* const from = in<uint16_t>(x) + begin;
      uint16_t largest[tile] = {};
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t i = 0; i < width; ++i)
          largest[i] = std::max(largest[i], static_cast<uint16_t>(from[row * cols + i] & magnitude_bits));
      }
      float factors[tile];
      for (int64_t i = 0; i < width; ++i) {
        const float scale = scale_of(largest[i]);
        out<float>(scales)[begin + i] = scale;
        factors[i] = e4m3::inverse(scale);
      }
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t i = 0; i < width; ++i)
          out<uint8_t>(values)[(begin + i) * rows + row] =
              e4m3::rounded(to_float(from[row * cols + i]) * factors[i]);
      }
    }
  });
}

// The matrix itself, bfloat16 [rows, cols].
Tensor as_bfloat16(const Tensor& values, const Tensor& scales) {
  const int64_t cols = values.size(1);
  Tensor result = at::empty(values.sizes(), scales.options().dtype(at::kBFloat16));
  parallel_for(values.size(0), row_grain(cols), [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row)
      widen_row(in<uint8_t>(values) + row * cols, in<float>(scales)[row], out<uint16_t>(result) + row * cols,
                cols);
  });
  return result;
}

void fp8_linear(const Tensor& a, const Tensor& a_scales, const Tensor& b, const Tensor& b_scales,
                const std::optional<Tensor>& bias, Tensor& result) {
  kernels::linear(as_bfloat16(a, a_scales), as_bfloat16(b, b_scales), bias, result);
}

// The GEMM sums over rows of tokens, so it has the order of weight gradients in bfloat16.
void fp8_weight_gradient(const Tensor& a, const Tensor& a_scales, const Tensor& b, const Tensor& b_scales,
                         bool adds, Tensor& weight_grad) {
  const auto rows_of_tokens = [](const Tensor& values, const Tensor& scales) {
    return as_bfloat16(values, scales).t().contiguous();
  };
  (adds ? kernels::accumulate_weight_gradient : kernels::weight_gradient)(
      rows_of_tokens(a, a_scales), rows_of_tokens(b, b_scales), weight_grad);
}

}  // namespace

void add_fp8_kernels() {
  kernels::quantize_rows.implement(BackEnd::cpu, quantize_rows);
  kernels::quantize_columns.implement(BackEnd::cpu, quantize_columns);
  kernels::fp8_linear.implement(BackEnd::cpu, fp8_linear);
  kernels::fp8_weight_gradient.implement(BackEnd::cpu, fp8_weight_gradient);
}

}  // namespace pptrain::kernels::cpu

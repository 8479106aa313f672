
#include <array>
#include <optional>
#include <vector>

#include "core/kernels/fp8_kernels.h"
#include "test/gpu/kernel_support.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

using namespace pptrain::test;
namespace kernels = pptrain::kernels;

namespace {

struct Rounded {
  Tensor values, scales;

  // E4M3 without a number, NaN, shows what a kernel forgets to write.
  Rounded(const Backend& b, int64_t rows, int64_t cols)
      : values(at::empty({rows, cols}, at::TensorOptions().device(b.device).dtype(at::kFloat8_e4m3fn))),
        scales(b.output({rows}, at::kFloat)) {
    values.view(at::kByte).fill_(0x7F);
  }
};

Rounded by_rows(const Backend& b, const Tensor& x) {
  Rounded result(b, x.size(0), x.size(1));
  b(kernels::quantize_rows, x, result.values, result.scales);
  return result;
}

// Rows of different magnitudes, made on the host for every back end.
Tensor operand(const Backend& b, int64_t rows, int64_t cols, uint64_t seed) {
  const Tensor magnitudes = reference().random({rows, 1}, at::kFloat, seed + 1).mul(3).exp();
  return reference().random({rows, cols}, at::kFloat, seed).mul(magnitudes).to(b.device, at::kBFloat16);
}

const std::vector<std::array<int64_t, 2>> shapes{{1, 1},    {3, 8},     {5, 33},  {31, 64},
                                                 {40, 129}, {65, 1000}, {2, 5000}};

}  // namespace

TEST_CASE("quantize_rows and quantize_columns", "[gpu]") {
  if (!can_run()) {
    return;
  }
  for (const auto& [rows, cols] : shapes) {
    CAPTURE(rows, cols);
    compare(
        [&, rows = rows, cols = cols](const Backend& b) -> std::vector<Tensor> {
          const Tensor x = operand(b, rows, cols, 1);
          const Rounded of_rows = by_rows(b, x);
          const Rounded apart = by_rows(b, x.narrow(1, cols / 3, cols - cols / 3));
          Rounded of_columns(b, cols, rows);
          b(kernels::quantize_columns, x, of_columns.values, of_columns.scales);
          std::vector<Tensor> results = {of_rows.scales, apart.scales, of_columns.scales};
          for (const Tensor& values : {of_rows.values, apart.values, of_columns.values})
            results.push_back(values.to(at::kFloat));
          return results;
        },
        0);
  }
}

// The tensor cores sum with about 14 bits.
TEST_CASE("fp8_linear", "[gpu]") {
  if (!can_run()) {
    return;
  }
  for (const auto& [rows, inner, cols] :
       std::vector<std::array<int64_t, 3>>{{16, 16, 16}, {7, 64, 48}, {64, 512, 96}, {100, 176, 64}}) {
    for (const bool biased : {false, true}) {
      CAPTURE(rows, inner, cols, biased);
      compare(
          [&, rows = rows, inner = inner, cols = cols](const Backend& b) -> std::vector<Tensor> {
            const Rounded x = by_rows(b, b.random({rows, inner}, at::kBFloat16, 1));
            const Rounded weight = by_rows(b, b.random({cols, inner}, at::kBFloat16, 2, 1 / 16.0));
            const auto bias = biased ? std::optional(b.random({cols}, at::kBFloat16, 3)) : std::nullopt;
            Tensor out = b.output({rows, cols}, at::kBFloat16);
            b(kernels::fp8_linear, x.values, x.scales, weight.values, weight.scales, bias, out);
            return {out};
          },
          0x1p-10);
    }
  }
}

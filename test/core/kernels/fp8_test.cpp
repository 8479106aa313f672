// FP8: every number against PyTorch's conversion, scales against their definition, and the GEMM against that
// of the numbers that its operands stand for.
#include "core/kernels/fp8_kernels.h"

#include <cmath>
#include <limits>

#include "core/kernels/e4m3.h"
#include "core/kernels/kernels.h"
#include "test/core/kernels/compare.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

using namespace pptrain;
using namespace pptrain::test;
using at::Tensor;
namespace e4m3 = pptrain::kernels::e4m3;

namespace {

constexpr auto kE4m3 = at::kFloat8_e4m3fn;

// All 65,536 bfloat16.
Tensor every_bfloat16() {
  return at::arange(-32768, 32768, at::kInt).to(at::kShort).view(at::kBFloat16);
}

Tensor as_pytorch_rounds(const Tensor& x) {
  return x.to(at::kFloat).clamp(-e4m3::largest, e4m3::largest).to(kE4m3);
}

struct Rounded {
  Tensor values, scales;
};

Rounded by_rows(const Tensor& x) {
  Rounded r{at::empty(x.sizes(), x.options().dtype(kE4m3)), at::empty({x.size(0)}, at::kFloat)};
  kernels::quantize_rows(x, r.values, r.scales);
  return r;
}

Rounded by_columns(const Tensor& x) {
  Rounded r{at::empty({x.size(1), x.size(0)}, x.options().dtype(kE4m3)), at::empty({x.size(1)}, at::kFloat)};
  kernels::quantize_columns(x, r.values, r.scales);
  return r;
}

// float64 [rows, cols]
Tensor meant(const Rounded& r) {
  return r.values.to(at::kDouble) * r.scales.to(at::kDouble).unsqueeze(1);
}

// The least power of two that brings x to 448 or below, from float64's logarithm.
double scale_for(double x) {
  if (!std::isfinite(x)) return x;
  if (x == 0) return std::exp2(e4m3::least_exponent);
  double exponent = std::ceil(std::log2(x / e4m3::largest));
  if (x / std::exp2(exponent - 1) <= e4m3::largest) --exponent;
  if (x / std::exp2(exponent) > e4m3::largest) ++exponent;
  return std::exp2(std::clamp<double>(exponent, e4m3::least_exponent, e4m3::greatest_exponent));
}

}  // namespace

TEST_CASE("E4M3's 256 numbers are PyTorch's", "[kernels]") {
  const Tensor codes = at::arange(0, 256, at::kInt).to(at::kByte);
  const Tensor expected = codes.view(kE4m3).to(at::kFloat);
  for (int code = 0; code < 256; ++code) {
    const float value = e4m3::value(static_cast<uint8_t>(code)), theirs = expected[code].item<float>();
    INFO(code);
    CHECK((value == theirs || (std::isnan(value) && std::isnan(theirs))));
  }
}

// A row of one number has the scale of that number; beside a larger one it is rounded by the larger one's.
TEST_CASE("every bfloat16 is rounded as PyTorch rounds it, by every scale", "[kernels]") {
  const Tensor x = every_bfloat16();
  for (int exponent = e4m3::least_exponent; exponent <= e4m3::greatest_exponent; ++exponent) {
    // Rows of two: the number, and what decides the scale.
    const float scale = std::ldexp(1.0f, exponent);
    const Tensor most = at::full({1}, 448.0 * scale, at::kFloat).to(at::kBFloat16);
    const Tensor held = x.to(at::kFloat).abs() <= 448.0 * scale;
    const Tensor in_row = at::where(held, x, at::zeros_like(x));
    const Rounded r = by_rows(test::stack({in_row, most.expand_as(in_row)}, 1));
    INFO("2^" << exponent);
    CHECK(r.scales.eq(scale).all().item<bool>());
    const Tensor expected = as_pytorch_rounds(in_row.to(at::kFloat) / scale);
    CHECK(same_bits(r.values.select(1, 0).contiguous().view(at::kByte), expected.view(at::kByte)));
  }
}

TEST_CASE("beyond E4M3's range numbers become the largest, and NaN stays", "[kernels]") {
  const Tensor x = every_bfloat16();
  const Tensor expected = as_pytorch_rounds(x).view(at::kByte);
  for (int64_t i = 0; i < x.numel(); ++i) {
    const float value = x[i].item<float>();
    if (std::isnan(value)) {
      CHECK((e4m3::rounded(value) & 0x7F) == 0x7F);
    } else if (e4m3::rounded(value) != expected[i].item<uint8_t>()) {
      FAIL("rounded(" << value << ")");
    }
  }
}

TEST_CASE("a row's scale is the least power of two that brings it into range", "[kernels]") {
  const Tensor x = every_bfloat16().unsqueeze(1);
  const Rounded r = by_rows(x);
  for (int64_t i = 0; i < x.size(0); ++i) {
    const double expected = scale_for(std::abs(x[i][0].item<double>())), scale = r.scales[i].item<double>();
    if (scale != expected && !(std::isnan(scale) && std::isnan(expected)))
      FAIL("scale " << scale << " of " << x[i][0].item<float>() << ", not " << expected);
  }
  // What a row stands for is a bfloat16; a row that is not finite stays so.
  const Tensor numbers = meant(r);
  CHECK(at::isfinite(numbers).eq(at::isfinite(x)).all().item<bool>());
  const Tensor finite = numbers.masked_select(at::isfinite(numbers));
  CHECK(same_bits(finite.to(at::kBFloat16).to(at::kDouble), finite));
}

TEST_CASE("one number that is not finite makes a whole row so", "[kernels]") {
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    Tensor x = at::ones({3, 40}, at::kBFloat16);
    x[1][7] = bad;
    CHECK(
        at::isfinite(meant(by_rows(x))).sum(1).ne(40).eq(at::tensor({0, 1, 0}, at::kInt)).all().item<bool>());
  }
}

TEST_CASE("columns are rounded as the rows of the transpose", "[kernels]") {
  at::manual_seed(seed(3));
  for (const auto& [rows, cols] :
       {std::pair(1, 1), std::pair(3, 130), std::pair(64, 64), std::pair(200, 71)}) {
    const Tensor x = at::randn({rows, cols}).mul(at::randn({cols}).exp()).to(at::kBFloat16);
    const Rounded columns = by_columns(x), transposed = by_rows(x.t().contiguous());
    CHECK(same_bits(columns.values.view(at::kByte), transposed.values.view(at::kByte)));
    CHECK(same_bits(columns.scales, transposed.scales));
  }
}

TEST_CASE("rows that lie apart are rounded as rows side by side", "[kernels]") {
  at::manual_seed(seed(4));
  const Tensor wide = at::randn({5, 96}).to(at::kBFloat16);
  const Rounded apart = by_rows(wide.narrow(1, 32, 48)),
                together = by_rows(wide.narrow(1, 32, 48).contiguous());
  CHECK(same_bits(apart.values.view(at::kByte), together.values.view(at::kByte)));
  CHECK(same_bits(apart.scales, together.scales));
}

TEST_CASE("fp8_linear multiplies what its operands stand for", "[kernels]") {
  at::manual_seed(seed(5));
  for (const auto& [rows, inner, cols] :
       {std::tuple(1, 16, 16), std::tuple(7, 48, 32), std::tuple(33, 512, 96), std::tuple(256, 176, 64)}) {
    CAPTURE(rows, inner, cols);
    const Rounded a = by_rows(at::randn({rows, inner}).mul(at::randn({rows, 1}).exp()).to(at::kBFloat16));
    const Rounded b = by_rows(at::randn({cols, inner}).to(at::kBFloat16));
    const Tensor bias = at::randn({cols}).to(at::kBFloat16);
    for (const std::optional<Tensor>& added : {std::optional<Tensor>(), std::optional(bias)}) {
      Tensor out = at::empty({rows, cols}, at::kBFloat16);
      kernels::fp8_linear(a.values, a.scales, b.values, b.scales, added, out);
      Tensor expected = meant(a).mm(meant(b).t());
      if (added) expected += added->to(at::kDouble);
      CHECK(relative_error(out, expected) < 0x1p-8);
      // And it has the bits of bfloat16's GEMM.
      Tensor same = at::empty({rows, cols}, at::kBFloat16);
      kernels::linear(meant(a).to(at::kBFloat16), meant(b).to(at::kBFloat16), added, same);
      CHECK(same_bits(out, same));
    }
  }
}

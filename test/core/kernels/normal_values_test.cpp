// Normal values by index: the generator against Random123's known answers, the arithmetic against libm in
// higher precision, and the kernel's values against the normal distribution and against each other.
#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numbers>
#include <vector>

#include "core/base/error.h"
#include "core/kernels/kernels.h"
#include "core/kernels/normal_value.h"
#include "test/core/kernels/compare.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

using namespace pptrain;
using namespace pptrain::test;
using at::Tensor;
namespace normal = kernels::normal_value;

namespace {

Tensor normal_values(int64_t size, uint64_t key, int64_t first = 0, double std = 1) {
  Tensor out = at::full({size}, NAN, at::TensorOptions().dtype(at::kFloat));
  kernels::normal_values(out, key, first, std);
  return out;
}

// P(Z > z), without cancellation.
long double upper_tail(long double z) {
  return std::erfc(z / std::numbers::sqrt2_v<long double>) / 2;
}

// The z with upper tail `tail`, by Newton's method from a nearly right value.
long double refine(long double z, long double tail) {
  for (int i = 0; i < 3; ++i) {
    const long double density =
        std::exp(-z * z / 2) * std::numbers::inv_sqrtpi_v<long double> / std::numbers::sqrt2_v<long double>;
    z += (upper_tail(z) - tail) / density;
  }
  return z;
}

}  // namespace

TEST_CASE("philox gives Random123's known answers", "[kernels]") {
  const auto words = [](uint32_t counter, uint32_t key) {
    const normal::Words w = normal::philox({{counter, counter, counter, counter}}, key, key);
    return std::array{w.v[0], w.v[1], w.v[2], w.v[3]};
  };
  CHECK(words(0, 0) == std::array{0x6627e8d5U, 0xe169c58dU, 0xbc57ac4cU, 0x9b00dbd8U});
  CHECK(words(0xffffffffU, 0xffffffffU) == std::array{0x408f276dU, 0x41c83b0eU, 0xa20bc7c6U, 0x6d5451fdU});
  const normal::Words pi =
      normal::philox({{0x243f6a88U, 0x85a308d3U, 0x13198a2eU, 0x03707344U}}, 0xa4093822U, 0x299f31d0U);
  CHECK(std::array{pi.v[0], pi.v[1], pi.v[2], pi.v[3]} ==
        std::array{0xd16cfe09U, 0x94fdccebU, 0x5001e420U, 0x24126ea1U});
}

TEST_CASE("the logarithm is within one unit in the last place", "[kernels]") {
  double worst = 0;
  for (int i = 0; i < 200000; ++i) {
    const double x = std::exp2(-34 + 36.0 * i / 200000) * (1 + i * 1e-9);
    const long double exact = std::log(static_cast<long double>(x));
    const double unit =
        std::abs(std::nextafter(static_cast<double>(exact), 1e9) - static_cast<double>(exact));
    worst = std::max(worst, static_cast<double>(std::abs(normal::log(x) - exact)) / unit);
  }
  CAPTURE(worst);
  CHECK(worst < 1);
  CHECK(normal::log(1.0) == 0);
}

TEST_CASE("the quantile inverts the distribution to 1e-14", "[kernels]") {
  double worst = 0;
  const auto check = [&](uint32_t word) {
    const double p = (word + 0.5) * 0x1p-32;
    const double z = normal::quantile(p);
    REQUIRE(normal::quantile(1 - p) == -z);
    const double away = std::abs(z);  // 1 - p is exact, and so is the smaller tail
    const long double exact = refine(away, std::min(p, 1 - p));
    worst = std::max(worst, static_cast<double>(std::abs(away - exact) / exact));
  };
  for (uint32_t i = 0; i < 20000; ++i) check(i * 214748U);
  for (uint32_t i = 0; i < 32; ++i) {
    check(uint32_t{1} << i);           // into the tail
    check(0x7fffffffU - (i * i * i));  // around the middle
  }
  check(0);
  check(0xffffffffU);
  CAPTURE(worst);
  CHECK(worst < 1e-14);
}

TEST_CASE("an element is the value of its number, scaled and rounded once", "[kernels]") {
  const uint64_t key = 0xfedcba9876543210ULL;
  const int64_t first = (int64_t{1} << 35) + 2;
  const Tensor out = normal_values(9, key, first, 0.02);
  for (int64_t i = 0; i < 9; ++i) {
    const auto number = static_cast<uint64_t>(first + i);
    const normal::Words w =
        normal::philox({{static_cast<uint32_t>(number / 4), static_cast<uint32_t>(number / 4 >> 32), 0, 0}},
                       0x76543210U, 0xfedcba98U);
    const double z = normal::quantile((w.v[number % 4] + 0.5) * 0x1p-32);
    CHECK(out[i].item<float>() == static_cast<float>(0.02 * z));
  }
}

TEST_CASE("normal values are normal", "[kernels]") {
  const int64_t size = 4'000'000;
  const Tensor x = normal_values(size, 42).to(at::kDouble);
  const auto n = static_cast<double>(size);
  CHECK(std::abs(x.mean().item<double>()) < 4 / std::sqrt(n));
  CHECK(std::abs(x.pow(2).mean().item<double>() - 1) < 4 * std::sqrt(2 / n));
  CHECK(std::abs(x.pow(3).mean().item<double>()) < 4 * std::sqrt(15 / n));
  CHECK(std::abs(x.pow(4).mean().item<double>() - 3) < 4 * std::sqrt(96 / n));
  // Neighbours, and the values of another key, are uncorrelated.
  const Tensor left = x.narrow(0, 0, size - 1), right = x.narrow(0, 1, size - 1);
  CHECK(std::abs((left * right).mean().item<double>()) < 4 / std::sqrt(n));
  CHECK(std::abs((x * normal_values(size, 43).to(at::kDouble)).mean().item<double>()) < 4 / std::sqrt(n));
  // Kolmogorov-Smirnov: sqrt(n) D exceeds 1.95 once in a thousand.
  const Tensor sorted = std::get<0>(x.sort());
  const double* const value = sorted.const_data_ptr<double>();
  double distance = 0;
  for (int64_t i = 0; i < size; ++i) {
    const double p = std::erfc(-value[i] / std::numbers::sqrt2) / 2;
    distance = std::max({distance, p - static_cast<double>(i) / n, static_cast<double>(i + 1) / n - p});
  }
  CAPTURE(distance * std::sqrt(n));
  CHECK(distance * std::sqrt(n) < 1.95);
}

TEST_CASE("any slice has the whole's bits, on any number of threads", "[kernels]") {
  const int64_t size = 50'003;
  at::set_num_threads(1);
  const Tensor whole = normal_values(size, 7);
  for (const int threads : {1, 2, 3}) {
    at::set_num_threads(threads);
    CHECK(same_bits(normal_values(size, 7), whole));
    for (const auto& [first, count] : {std::pair{0, 5}, {1, 4}, {2, 1}, {3, 20'001}, {49'999, 4}, {17, 0}}) {
      CAPTURE(threads, first, count);
      CHECK(same_bits(normal_values(count, 7, first), whole.narrow(0, first, count)));
    }
  }
  at::set_num_threads(1);
  Tensor matrix = at::empty({7, 11}, at::TensorOptions().dtype(at::kFloat));
  kernels::normal_values(matrix, 7, 0, 1);
  CHECK(same_bits(matrix.view({77}), whole.narrow(0, 0, 77)));
  CHECK_FALSE(same_bits(normal_values(100, 8), whole.narrow(0, 0, 100)));
  Tensor transposed = matrix.t();
  CHECK_THROWS_AS(kernels::normal_values(transposed, 7, 0, 1), Error);
  CHECK_THROWS_AS(kernels::normal_values(matrix, 7, -1, 1), Error);
}

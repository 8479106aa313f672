// Exact sums against sums in long double and against themselves in other orders; also the kernel that adds to
// them.
#include "core/kernels/exact_sum.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "core/base/error.h"
#include "core/kernels/kernels.h"
#include "test/core/kernels/compare.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

using namespace pptrain;
using namespace pptrain::test;
using at::Tensor;
using kernels::ExactSum;

namespace {

ExactSum sum_of(const std::vector<double>& values) {
  ExactSum sum;
  for (const double value : values) sum.add(value);
  return sum;
}

// Squares of float32 values of all sizes, denormal ones too.
std::vector<double> squares(int count, int lowest, int highest) {
  std::mt19937_64 random(7);
  std::uniform_real_distribution<double> fraction(1, 2);
  std::uniform_int_distribution<int> exponent(lowest, highest);
  std::vector<double> values;
  for (int i = 0; i < count; ++i) {
    const auto x = static_cast<float>(std::ldexp(fraction(random), exponent(random)));
    values.push_back(static_cast<double>(x) * static_cast<double>(x));
  }
  return values;
}

ExactSum exact_sum(const Tensor& words) {
  return ExactSum(
      std::span<const int64_t, kernels::exact_words>(words.const_data_ptr<int64_t>(), kernels::exact_words));
}

// The sum over the buffer's slices [begin, next begin), each added separately.
double sum_in_parts(const Tensor& buffer, const std::vector<int64_t>& begins) {
  Tensor words = at::zeros({kernels::exact_words}, at::kLong);
  for (size_t i = 0; i < begins.size(); ++i) {
    const int64_t end = i + 1 < begins.size() ? begins[i + 1] : buffer.numel();
    kernels::add_squares({{buffer.narrow(0, begins[i], end - begins[i]), begins[i]}}, words);
  }
  return exact_sum(words).rounded();
}

}  // namespace

TEST_CASE("what float64 can hold comes back as it was", "[exact_sum]") {
  for (const double value : squares(2000, -149, 127)) REQUIRE(sum_of({value}).rounded() == value);
  const double smallest = std::ldexp(1.0, -298), largest = static_cast<double>(FLT_MAX) * FLT_MAX;
  for (const double value :
       {0.0, smallest, 3 * smallest, largest, 1024 * largest, 1.0, 0x1.fffffffffffffp52}) {
    CHECK(sum_of({value}).rounded() == value);
  }
  CHECK(ExactSum().rounded() == 0);
}

TEST_CASE("an exact sum is the true one, rounded once to even", "[exact_sum]") {
  // For small integers and their halves float64 gives the true sum.
  const double half_unit = 1, two_to_53 = 0x1p53;
  CHECK(sum_of({two_to_53, half_unit}).rounded() == two_to_53);
  CHECK(sum_of({two_to_53 + 2, half_unit}).rounded() == two_to_53 + 4);
  CHECK(sum_of({two_to_53, half_unit, std::ldexp(1.0, -298)}).rounded() == two_to_53 + 2);
  CHECK(sum_of({0x1.fffffffffffffp52, 0.5}).rounded() == 0x1p53);
  // In one binade a mantissa of 64 bits holds the sum of a thousand terms of 48 bits.
  const std::vector<double> values = squares(1000, 0, 1);
  long double truth = 0;
  for (const double value : values) truth += value;
  CHECK(sum_of(values).rounded() == static_cast<double>(truth));
}

TEST_CASE("the order of terms and of partial sums leaves no trace", "[exact_sum]") {
  std::vector<double> values = squares(5000, -149, 127);
  const double reference = sum_of(values).rounded();
  std::mt19937_64 random(3);
  for (int i = 0; i < 5; ++i) {
    std::ranges::shuffle(values, random);
    CHECK(sum_of(values).rounded() == reference);
    // As between ranks: normalised partial sums are added as float64, in turn.
    std::vector<double> added(kernels::exact_words, 0.0);
    for (int rank = 0; rank < 7; ++rank) {
      ExactSum own;
      for (size_t j = static_cast<size_t>(rank); j < values.size(); j += 7) own.add(values[j]);
      const auto words = own.portable();
      for (size_t w = 0; w < words.size(); ++w) added[w] += words[w];
    }
    CHECK(ExactSum(std::span<const double>(added)).rounded() == reference);
  }
}

TEST_CASE("terms that are not finite show, whatever else there is", "[exact_sum]") {
  for (const double value : {std::nan(""), static_cast<double>(INFINITY)}) {
    ExactSum sum = sum_of({1, value, 2});
    CHECK(std::isnan(sum.rounded()));
    const auto words = sum.portable();
    ExactSum other = sum_of({3});
    other.add(ExactSum(std::span<const double>(words)));
    CHECK(std::isnan(other.rounded()));
  }
  CHECK_THROWS_AS(ExactSum(std::vector<double>(19, 0.0)), Error);
}

TEST_CASE("add_squares is the sum of squares, of any part of a buffer", "[kernels]") {
  at::set_num_threads(1);
  const auto size = GENERATE(0, 1, 31, 33, 1000, 200001);
  const auto place = GENERATE(0, 5, 1024, 1030);
  const Tensor x = at::randn({size}) * 1e20;  // squares overflow float32
  Tensor words = at::zeros({kernels::exact_words}, at::kLong);
  kernels::add_squares({{x, place}}, words);
  CHECK(relative_error(at::scalar_tensor(exact_sum(words).rounded(), at::kDouble),
                       x.to(at::kDouble).pow(2).sum()) < 1e-13);
  kernels::add_squares({{x, place}}, words);
  CHECK(relative_error(at::scalar_tensor(exact_sum(words).rounded(), at::kDouble),
                       2 * x.to(at::kDouble).pow(2).sum()) < 1e-13);
  if (size == 0) return;
  x[size - 1] = std::nan("");
  kernels::add_squares({{x, place}}, words);
  CHECK(std::isnan(exact_sum(words).rounded()));
}

TEST_CASE("a buffer cut into whole blocks gives the same bits", "[kernels]") {
  at::set_num_threads(1);
  Tensor buffer = at::randn({20000});
  buffer.narrow(0, 3000, 9000).mul_(1e-25);
  buffer.narrow(0, 15000, 2000).mul_(1e18);
  const double whole = sum_in_parts(buffer, {0});
  for (const std::vector<int64_t>& begins : std::vector<std::vector<int64_t>>{
           {0, 1024}, {0, 10240}, {0, 5120, 10240, 15360}, {0, 1024, 2048, 3072, 4096, 19456}}) {
    CHECK(sum_in_parts(buffer, begins) == whole);
  }
  Tensor words = at::zeros({kernels::exact_words}, at::kLong);
  CHECK_THROWS_AS(kernels::add_squares({{buffer, -1}}, words), Error);
  CHECK_THROWS_AS(kernels::add_squares({{buffer.to(at::kDouble), 0}}, words), Error);
}

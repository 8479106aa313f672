#include "core/data/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "core/base/error.h"
#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::data;

namespace {

std::vector<int64_t> take(const Sampler& sampler, int64_t from, int64_t count) {
  std::vector<int64_t> order;
  for (int64_t i = from; i < from + count; ++i) order.push_back(sampler(i));
  return order;
}

std::vector<int64_t> identity(int64_t size) {
  std::vector<int64_t> order(static_cast<size_t>(size));
  std::iota(order.begin(), order.end(), 0);
  return order;
}

}  // namespace

TEST_CASE("without shuffling the order is the file's, epoch after epoch") {
  const Sampler sampler(3, false, 42);
  CHECK(take(sampler, 0, 7) == std::vector<int64_t>{0, 1, 2, 0, 1, 2, 0});
}

TEST_CASE("each epoch is a permutation") {
  for (int64_t size = 1; size <= 300; ++size) {
    const Sampler sampler(size, true, 7);
    for (const int64_t epoch : {0, 1, 1000}) {
      auto order = take(sampler, epoch * size, size);
      std::ranges::sort(order);
      REQUIRE(order == identity(size));
    }
  }
  auto large = take(Sampler(100'003, true, 7), 0, 100'003);
  std::ranges::sort(large);
  CHECK(large == identity(100'003));
}

TEST_CASE("the order depends on seed and epoch, and on nothing else") {
  const Sampler sampler(1000, true, 1);
  const auto first = take(sampler, 0, 1000);
  CHECK(first == take(Sampler(1000, true, 1), 0, 1000));
  CHECK(first != take(sampler, 1000, 1000));
  CHECK(first != take(Sampler(1000, true, 2), 0, 1000));
  CHECK(first != identity(1000));
  // (seed, epoch) and (epoch, seed) are different orders.
  CHECK(take(Sampler(1000, true, 3), 5 * 1000, 1000) != take(Sampler(1000, true, 5), 3 * 1000, 1000));
}

// Over many epochs each sample must be equally likely at every place: chi-square over all (place, sample)
// pairs.
TEST_CASE("shuffling is even") {
  constexpr int64_t size = 10, epochs = 20'000;
  const Sampler sampler(size, true, 123);
  std::vector<double> seen(size * size, 0);
  for (int64_t n = 0; n < size * epochs; ++n) seen[(n % size) * size + sampler(n)] += 1;
  const double expected = static_cast<double>(epochs) / size;
  double chi_square = 0;
  for (const double count : seen) chi_square += (count - expected) * (count - expected) / expected;
  // (size-1)^2 = 81 degrees of freedom: mean 81, standard deviation 12.7.
  CHECK(chi_square < 81 + 5 * 12.7);
  CHECK(chi_square > 81 - 5 * 12.7);
}

// The correlation between a place and its sample. For a fair shuffle its standard deviation is 1/sqrt(n).
TEST_CASE("shuffling leaves no trend") {
  constexpr int64_t size = 50'000;
  const Sampler sampler(size, true, 99);
  const double mean = (size - 1) / 2.0;
  double covariance = 0, variance = 0, neighbours = 0;
  for (int64_t n = 0; n < size; ++n) {
    const auto x = static_cast<double>(n) - mean;
    const auto y = static_cast<double>(sampler(n)) - mean;
    covariance += x * y;
    variance += x * x;
    if (n > 0) neighbours += (static_cast<double>(sampler(n - 1)) - mean) * y;
  }
  CHECK(std::abs(covariance / variance) < 5 / std::sqrt(double{size}));
  CHECK(std::abs(neighbours / variance) < 5 / std::sqrt(double{size}));
}

TEST_CASE("huge datasets cost nothing") {
  const int64_t size = int64_t{1} << 40;
  const Sampler sampler(size, true, 5);
  for (int64_t n = 0; n < 1000; ++n) {
    const int64_t index = sampler(n * 999'999'937);
    CHECK((index >= 0 && index < size));
  }
}

TEST_CASE("bad arguments are refused") {
  CHECK_THROWS_AS(Sampler(0, true, 1), Error);
  CHECK_THROWS_AS(Sampler(3, true, 1)(-1), Error);
}

TEST_CASE("the order is the one that README.md describes, so that runs go on with later versions") {
  CHECK(take(Sampler(10, true, 7), 0, 10) == std::vector<int64_t>{2, 7, 8, 5, 4, 6, 3, 1, 9, 0});
  CHECK(take(Sampler(10, true, 7), 10, 10) == std::vector<int64_t>{3, 7, 5, 1, 8, 2, 0, 4, 9, 6});
  CHECK(take(Sampler(16, true, 7), 0, 8) == std::vector<int64_t>{12, 15, 8, 11, 4, 6, 3, 1});
  CHECK(take(Sampler(300, true, 7), 600, 6) == std::vector<int64_t>{128, 184, 5, 35, 63, 19});
  CHECK(take(Sampler(int64_t{1} << 40, true, 5), 0, 3) ==
        std::vector<int64_t>{293589657885, 601705043548, 1066484725155});
}

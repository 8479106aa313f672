// AdamW and Lion with moments in bfloat16: the kernels with float32 moments are the oracle, rounded one
// element at a time as the header says.
#include "core/kernels/stochastic_rounding.h"

#include <ATen/Parallel.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "core/base/error.h"
#include "core/kernels/kernels.h"
#include "test/core/kernels/compare.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

using namespace pptrain;
using namespace pptrain::test;
using at::Tensor;
using kernels::RoundingBits;

namespace {

// x rounded by the upper (first moments) or lower half of each element's random word.
Tensor rounded(const Tensor& x, const RoundingBits& bits, int shift) {
  Tensor result = at::empty(x.sizes(), at::kBFloat16);
  for (int64_t i = 0; i < x.numel(); ++i) {
    const uint32_t word = bits.words(i).word(0);
    const uint16_t value =
        kernels::round_stochastically(x.const_data_ptr<float>()[i], (word >> shift) & 0xffffU);
    static_cast<uint16_t*>(result.mutable_data_ptr())[i] = value;
  }
  return result;
}

}  // namespace

TEST_CASE("a step rounds bfloat16 moments as the header says, and its weights not at all", "[kernels]") {
  at::set_num_threads(static_cast<int>(GENERATE(1, 2)));
  at::manual_seed(test::seed(5));
  const int64_t size = GENERATE(1, 15, 16, 203, 5003);
  // Whole; a range of a box of columns; runs that end within a vector; beyond 2^32 elements.
  const RoundingBits bits = GENERATE(
      RoundingBits{.key = 7}, RoundingBits{.key = 0x123456789abcdefU, .first = 11, .run = 64, .stride = 256},
      RoundingBits{.key = 3, .first = 2, .run = 5, .stride = 9, .offset = 4},
      RoundingBits{.key = 9, .offset = (int64_t{1} << 32) - 100});
  CAPTURE(size, bits.run, bits.offset);
  const Tensor g = at::randn({size}, at::kFloat), w0 = at::randn({size}, at::kFloat);
  const Tensor m0 = at::randn({size}, at::kFloat).to(at::kBFloat16),
               v0 = at::rand({size}, at::kFloat).to(at::kBFloat16);
  const kernels::StepArgs args{.lr = 1e-2, .weight_decay = 0.1, .grad_scale = 0.3, .step = 2};
  const bool lion = GENERATE(false, true);
  const auto& step = lion ? kernels::lion : kernels::adamw;
  const auto second = [&](const Tensor& v) { return lion ? Tensor() : v; };

  Tensor w = w0.clone(), m = m0.clone(), v = v0.clone(), compute = at::empty({size}, at::kBFloat16);
  const kernels::StepPrevious kept{at::empty_like(w), at::empty_like(m), second(at::empty_like(v))};
  step({{w, g, m, second(v), compute, args, kept, bits}});
  Tensor w1 = w0.clone(), m1 = m0.to(at::kFloat), v1 = v0.to(at::kFloat),
         compute1 = at::empty({size}, at::kBFloat16);
  step({{w1, g, m1, second(v1), compute1, args, std::nullopt}});
  at::set_num_threads(1);
  CHECK(same_bits(w, w1));
  CHECK(same_bits(compute, compute1));
  CHECK(same_bits(m, rounded(m1, bits, 16)));
  if (!lion) CHECK(same_bits(v, rounded(v1, bits, 0)));
  CHECK(same_bits(kept.weight, w0));
  CHECK(same_bits(kept.exp_avg, m0));
  if (!lion) CHECK(same_bits(kept.exp_avg_sq, v0));
}

TEST_CASE("what a step overwrites is kept bit for bit, however small", "[kernels]") {
  const Tensor bits = at::arange(0x8000, at::kInt).to(at::kShort);  // all positive bfloat16, 0 to NaN
  const Tensor m0 = bits.view(at::kBFloat16), w = at::zeros_like(m0, at::kFloat);
  Tensor m = m0.clone(), v = m0.clone(), weight = w.clone();
  const kernels::StepPrevious kept{at::empty_like(w), at::empty_like(m), at::empty_like(v)};
  kernels::adamw({{weight, at::zeros_like(w), m, v, std::nullopt, {.lr = 0}, kept}});
  // A signalling NaN (0x7f81 to 0x7fbf) may become a quiet one.
  const int64_t finite = 0x7f81;
  CHECK(same_bits(kept.exp_avg.narrow(0, 0, finite), m0.narrow(0, 0, finite)));
  CHECK(same_bits(kept.exp_avg_sq.narrow(0, 0, finite), m0.narrow(0, 0, finite)));
}

TEST_CASE("stochastic rounding keeps the mean, and both moments draw by themselves", "[kernels]") {
  const int64_t size = 1 << 18;
  // A 37th of the way from 1 to the next bfloat16.
  const float step = 0x1p-7F, value = 1 + step / 37;
  const auto ups = [&](uint64_t key) {
    const RoundingBits bits{.key = key};
    const Tensor x = at::full({size}, value, at::kFloat);
    return std::vector<Tensor>{rounded(x, bits, 16).gt(1), rounded(x, bits, 0).gt(1)};
  };
  // The number of events of probability p in `size` tries lies within 6 deviations.
  const auto check_count = [&](const Tensor& events, double p) {
    const double count = events.sum().item<double>(), n = size;
    CHECK(std::abs(count - n * p) < 6 * std::sqrt(n * p * (1 - p)));
  };
  const double p = 1.0 / 37;
  for (const uint64_t key : {uint64_t{0}, uint64_t{1}, uint64_t{0xfeedfacecafebeefU}}) {
    const std::vector<Tensor> here = ups(key), next = ups(key + 1), high = ups(key + (uint64_t{1} << 32));
    check_count(here[0], p);
    check_count(here[1], p);
    check_count(here[0] & here[1], p * p);
    check_count(here[0] & next[0], p * p);
    check_count(here[1] & high[1], p * p);
    // Neighbours.
    check_count(here[0].narrow(0, 0, size - 1) & here[0].narrow(0, 1, size - 1), p * p);
  }
}

TEST_CASE("stochastic rounding leaves bfloat16 values, infinity and NaN as they are", "[kernels]") {
  const auto of = [](float x, uint32_t random) {
    return std::bit_cast<float>(uint32_t{kernels::round_stochastically(x, random)} << 16);
  };
  constexpr float infinity = std::numeric_limits<float>::infinity();
  for (const uint32_t random : {0U, 1U, 0xffffU}) {
    for (const float x : {0.0F, 1.0F, -1.5F, 0x1p-133F, infinity, -infinity}) CHECK(of(x, random) == x);
    CHECK(std::isnan(of(std::nanf(""), random)));
    CHECK(std::isnan(of(std::bit_cast<float>(0x7fffffffU), random)));
    CHECK(std::isnan(of(std::bit_cast<float>(0xff800001U), random)));
  }
  CHECK(of(1 + 0x1p-8F, 0x7fffU) == 1);
  CHECK(of(1 + 0x1p-8F, 0x8000U) == 1 + 0x1p-7F);
  CHECK(of(-1 - 0x1p-8F, 0x8000U) == -1 - 0x1p-7F);
}

TEST_CASE("moments of one type alone", "[kernels]") {
  Tensor w = at::zeros({8}, at::kFloat), m = at::zeros({8}, at::kFloat), v = at::zeros({8}, at::kBFloat16);
  const auto step = [&](Tensor exp_avg, Tensor exp_avg_sq) {
    kernels::adamw({{w, w.clone(), exp_avg, exp_avg_sq, std::nullopt, {.lr = 1}, std::nullopt}});
  };
  CHECK_THROWS_WITH(step(m, v), contains_text("exp_avg_sq"));
  CHECK_THROWS_WITH(step(m.to(at::kHalf), v), contains_text("exp_avg"));
  CHECK_NOTHROW(step(v.clone(), v));
}

#include "core/kernels/exact_sum.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/base/error.h"

namespace pptrain::kernels {

ExactSum::ExactSum(std::span<const int64_t, exact_words> words) {
  std::ranges::copy(words, words_.begin());
}

ExactSum::ExactSum(std::span<const double> words) {
  if (words.size() != exact_words) throw Error("an exact sum has 20 words");
  std::ranges::transform(words, words_.begin(), [](double word) { return static_cast<int64_t>(word); });
}

void ExactSum::add(double value) {
  if (!is_exact_term(value)) {
    ++words_[exact_limbs];
    return;
  }
  const ExactTerm term = exact_term(value);
  for (int i = 0; i < 3 && term.limb + i < exact_limbs; ++i) words_[term.limb + i] += term.pieces[i];
}

void ExactSum::add(const ExactSum& other) {
  for (int i = 0; i < exact_words; ++i) words_[i] += other.words_[i];
}

// The same value with limbs of 32 bits.
std::array<int64_t, exact_words> ExactSum::normalised() const {
  std::array<int64_t, exact_words> words = words_;
  for (int i = 0; i + 1 < exact_limbs; ++i) {
    words[i + 1] += words[i] >> 32;
    words[i] &= 0xffffffff;
  }
  if (words[exact_limbs - 1] >> 32 != 0) throw Error("an exact sum has left its range");
  return words;
}

std::array<double, exact_words> ExactSum::portable() const {
  std::array<double, exact_words> result{};
  std::ranges::transform(normalised(), result.begin(),
                         [](int64_t word) { return static_cast<double>(word); });
  return result;
}

double ExactSum::rounded() const {
  const auto words = normalised();
  if (words[exact_limbs] != 0) return std::numeric_limits<double>::quiet_NaN();
  const auto bit = [&](int i) { return i < 0 ? 0 : words[i / 32] >> i % 32 & 1; };
  int highest = exact_limbs * 32 - 1;
  while (highest >= 0 && bit(highest) == 0) --highest;
  const int last = highest - 52;  // of the bits that a float64 holds
  int64_t mantissa = 0;
  for (int i = highest; i >= last; --i) mantissa = 2 * mantissa + bit(i);
  bool beyond_half = false;
  for (int i = last - 2; i >= 0 && !beyond_half; --i) beyond_half = bit(i) != 0;
  if (bit(last - 1) != 0 && (beyond_half || mantissa % 2 != 0)) ++mantissa;
  return std::ldexp(static_cast<double>(mantissa), last + exact_lowest_exponent);
}

}  // namespace pptrain::kernels

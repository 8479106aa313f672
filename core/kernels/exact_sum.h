// Sums of float64 values without rounding: any order and any grouping gives the same bits (a
// fixed-point accumulator as long as the range of its terms: Kulisch, Computer Arithmetic and Validity,
// 2008).
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <span>

#include "core/kernels/host_device.h"

namespace pptrain::kernels {

// Limb i counts units of 2^(32 i - 298): squares of float32 values are multiples of 2^-298, and so are their
// sums in float64. The limbs reach up to 2^310, which 2^54 squares of the largest float32 do not. One word
// more counts the terms that are not finite.
inline constexpr int exact_limbs = 19;
inline constexpr int exact_words = exact_limbs + 1;
inline constexpr int exact_lowest_exponent = -298;

// What a term adds: pieces of 32 bits to limb, limb + 1 and limb + 2. Of limbs beyond the last, pieces are 0.
struct ExactTerm {
  int limb;
  uint32_t pieces[3];
};

constexpr uint64_t exact_exponent_mask = 0x7ff;

PPTRAIN_HOST_DEVICE inline bool is_exact_term(double value) {
  uint64_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return (bits >> 52 & exact_exponent_mask) != exact_exponent_mask;
}

// value: finite, not negative, a multiple of 2^-298 below 2^310.
PPTRAIN_HOST_DEVICE inline ExactTerm exact_term(double value) {
  uint64_t bits;
  memcpy(&bits, &value, sizeof(bits));
  const int exponent = static_cast<int>(bits >> 52 & exact_exponent_mask);
  if (exponent == 0) return {0, {0, 0, 0}};  // zero: smaller values are no multiples
  uint64_t mantissa = (bits & ((uint64_t{1} << 52) - 1)) | uint64_t{1} << 52;
  int place = exponent - 1075 - exact_lowest_exponent;  // value = mantissa 2^(place - 298)
  if (place < 0) {
    mantissa >>= -place;  // zeros
    place = 0;
  }
  const int shift = place % 32;
  const uint64_t low = mantissa << shift;
  const uint64_t high = shift == 0 ? 0 : mantissa >> (64 - shift);
  return {place / 32,
          {static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32), static_cast<uint32_t>(high)}};
}

// An accumulator: 19 limbs and the count. A limb takes 2^31 terms before it must be normalised.
class ExactSum {
 public:
  ExactSum() = default;
  explicit ExactSum(std::span<const int64_t, exact_words> words);
  // From the result of portable(), or sums of such results.
  explicit ExactSum(std::span<const double> words);

  void add(double value);  // as exact_term takes it, or not finite
  void add(const ExactSum& other);
  std::span<const int64_t, exact_words> words() const { return words_; }

  // For transports: limbs of 32 bits, as float64 values. Up to 2^20 of them add up without rounding.
  std::array<double, exact_words> portable() const;
  // The sum, rounded once, to the nearest float64 (ties to even); NaN if a term was not finite.
  double rounded() const;

 private:
  std::array<int64_t, exact_words> normalised() const;

  std::array<int64_t, exact_words> words_{};
};

}  // namespace pptrain::kernels

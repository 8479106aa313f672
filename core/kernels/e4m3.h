// E4M3, the 8-bit format of FP8 with four bits of exponent and three of mantissa (Micikevicius et al., arXiv
// 2209.05433; PyTorch's float8_e4m3fn), and the powers of two by which rows are scaled. Plain arithmetic
// without branches, with equal bits from every compiler and processor.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/kernels/host_device.h"

namespace pptrain::kernels::e4m3 {

// The largest number, 1.75 * 2^8.
constexpr float largest = 448;
// Scales are from 2^-117 to 2^119, so that every product of a number and a scale is a normal bfloat16.
constexpr int least_exponent = -117, greatest_exponent = 119;

PPTRAIN_HOST_DEVICE inline uint32_t bits_of(float x) {
  uint32_t bits = 0;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

PPTRAIN_HOST_DEVICE inline float float_of(uint32_t bits) {
  float x = 0;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

// x rounded to the nearest number, halves to even, and what lies beyond the largest to the largest. NaN
// stays.
PPTRAIN_HOST_DEVICE inline uint8_t rounded(float x) {
  constexpr uint32_t kLargest = 0x43E00000U;  // the bits of 448
  constexpr uint32_t kNormal = 0x3C800000U;   // of 2^-6, the least normal number
  constexpr uint32_t kUnits = 0x46800000U;  // of 2^14, whose unit in the last place is 2^-9, the least number
  constexpr uint32_t kBias = (127 - 7) << 3;  // of float32's exponent and of E4M3's
  const uint32_t bits = bits_of(x), magnitude = bits & 0x7FFFFFFFU;
  const uint32_t held = magnitude < kLargest ? magnitude : kLargest;
  const uint32_t normal = ((held + 0x7FFFFU + ((held >> 20) & 1U)) >> 20) - kBias;
  const uint32_t small = bits_of(float_of(held) + float_of(kUnits)) - kUnits;
  uint32_t code = held < kNormal ? small : normal;
  code = magnitude > 0x7F800000U ? 0x7FU : code;
  return static_cast<uint8_t>(code | ((bits >> 24) & 0x80U));
}

// The number that 8 bits stand for.
PPTRAIN_HOST_DEVICE inline float value(uint8_t code) {
  const uint32_t magnitude = code & 0x7FU;
  const uint32_t normal = (magnitude << 20) + (uint32_t{120} << 23);
  const uint32_t small = bits_of(static_cast<float>(static_cast<int32_t>(magnitude)) * (1.0F / 512));
  uint32_t bits = magnitude < 8 ? small : normal;
  bits = magnitude == 0x7FU ? 0x7FC00000U : bits;
  return float_of(bits | (static_cast<uint32_t>(code & 0x80U) << 24));
}

// The scale of a row whose largest magnitude has these bits: the least power of two that brings it to 448 or
// below. Infinity or NaN itself if the row is not finite, so that all that is computed from it is not either.
PPTRAIN_HOST_DEVICE inline float scale_of(uint32_t largest_magnitude) {
  if (largest_magnitude >= 0x7F800000U) return float_of(largest_magnitude);
  const int exponent = static_cast<int>(largest_magnitude >> 23) - 127 - 8;
  const int raised = exponent + ((largest_magnitude & 0x7FFFFFU) > 0x600000U ? 1 : 0);
  const int low = raised < least_exponent ? least_exponent : raised;
  const int held = low > greatest_exponent ? greatest_exponent : low;
  return float_of(static_cast<uint32_t>(held + 127) << 23);
}

// 1 / scale, exact for a power of two.
PPTRAIN_HOST_DEVICE inline float inverse(float scale) {
  return 1.0F / scale;
}

}  // namespace pptrain::kernels::e4m3

// Stochastic rounding to bfloat16: up or down, with the probabilities that make the mean of the result the
// value itself (Gupta et al., arXiv 1502.02551). The random bits depend only on a key and on an element's
// place in its parameter, so every layout, thread count and back end rounds an element alike.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/kernels/host_device.h"

namespace pptrain::kernels {

// A hash of 32 bits (C. Wellons' search for integer hashes of low bias, nullprogram.com/blog/2018/07/31).
PPTRAIN_HOST_DEVICE inline uint32_t scramble(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x21f0aaadU;
  x = (x ^ (x >> 15)) * 0xd35a2d97U;
  return x ^ (x >> 15);
}

// The random words of elements that are neighbours in their parameter, from one element on. Their places have
// the same upper 32 bits.
struct RandomWords {
  uint32_t low;
  uint32_t high;

  PPTRAIN_HOST_DEVICE uint32_t word(uint32_t index) const { return scramble(scramble(low + index) ^ high); }
};

// What the roundings of one part of a parameter in one step draw from. The part's elements lie in the box
// that a rank holds of the parameter, which is cut in one dim at most.
struct RoundingBits {
  uint64_t key = 0;    // of the parameter and the step
  int64_t first = 0;   // of the part, in the box
  int64_t run = 1;     // elements of the box that are neighbours in the parameter
  int64_t stride = 1;  // from one run to the next, in the parameter
  int64_t offset = 0;  // of the box's first element, in the parameter

  // Element i of the part, counted in the whole parameter.
  PPTRAIN_HOST_DEVICE int64_t place(int64_t i) const {
    if (run == stride) return offset + first + i;
    return offset + (first + i) / run * stride + (first + i) % run;
  }
  // From element i on, for as many as neighbours(i) says.
  PPTRAIN_HOST_DEVICE RandomWords words(int64_t i) const {
    const auto at = static_cast<uint64_t>(place(i));
    return {static_cast<uint32_t>(at) + static_cast<uint32_t>(key),
            static_cast<uint32_t>(key >> 32) + static_cast<uint32_t>(at >> 32) * 0x9e3779b9U};
  }
  PPTRAIN_HOST_DEVICE int64_t neighbours(int64_t i) const {
    const int64_t same_word = (int64_t{1} << 32) - (place(i) & 0xffffffff);
    if (run == stride) return same_word;
    const int64_t of_run = run - (first + i) % run;
    return of_run < same_word ? of_run : same_word;
  }
};

// The bits of a bfloat16 next to the value. random: 16 bits. Infinity and NaN stay what they are.
PPTRAIN_HOST_DEVICE inline uint16_t round_stochastically(float value, uint32_t random) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7f800000U) != 0x7f800000U) {
    bits += random;
  } else if ((bits & 0x007fffffU) != 0) {
    bits |= 0x00400000U;
  }
  return static_cast<uint16_t>(bits >> 16);
}

}  // namespace pptrain::kernels

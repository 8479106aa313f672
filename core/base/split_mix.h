// Numbers whose bits are mixed.
#pragma once

#include <cstdint>

namespace pptrain {

// SplitMix64's next value from state x (Steele, Lea, Flood, "Fast splittable pseudorandom number generators",
// 2014): numbers made of others so do not meet.
inline uint64_t split_mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// Random numbers that are the same on every machine.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t bits() { return split_mix(state_ += 0x9e3779b97f4a7c15); }
  // From 0 to n - 1.
  template <typename Number>
  Number below(Number n) {
    return static_cast<Number>(((bits() >> 32) * static_cast<uint64_t>(n)) >> 32);
  }

 private:
  uint64_t state_;
};

}  // namespace pptrain

#include "core/data/sampler.h"

#include <bit>
#include <string>

#include "core/base/error.h"

namespace pptrain::data {
namespace {

constexpr int feistel_rounds = 8;

// The finaliser of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014).
uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace

Permutation::Permutation(int64_t size, uint64_t key) : size_(size), key_(key) {
  if (size < 1) throw Error("a permutation needs at least one element, not " + std::to_string(size));
  const int bits = std::bit_width(static_cast<uint64_t>(size) - 1);
  half_bits_ = bits < 2 ? 1 : (bits + 1) / 2;
}

uint64_t Permutation::encrypt(uint64_t value) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t left = value >> half_bits_;
  uint64_t right = value & mask;
  for (uint64_t round = 0; round < feistel_rounds; ++round) {
    const uint64_t scrambled = mix(mix(key_ + round) ^ right) & mask;
    const uint64_t next = left ^ scrambled;
    left = right;
    right = next;
  }
  return (left << half_bits_) | right;
}

int64_t Permutation::operator()(int64_t index) const {
  if (index < 0 || index >= size_) {
    throw Error("permutation: index " + std::to_string(index) + " is not in [0, " + std::to_string(size_) +
                ")");
  }
  uint64_t value = static_cast<uint64_t>(index);
  do {
    value = encrypt(value);
  } while (value >= static_cast<uint64_t>(size_));
  return static_cast<int64_t>(value);
}

Sampler::Sampler(int64_t samples, bool shuffle, uint64_t seed)
    : samples_(samples), shuffle_(shuffle), seed_(seed) {
  if (samples < 1) throw Error("a sampler needs at least one sample, not " + std::to_string(samples));
}

int64_t Sampler::operator()(int64_t position) const {
  if (position < 0) throw Error("sampler: position " + std::to_string(position) + " is negative");
  const int64_t index = position % samples_;
  if (!shuffle_) return index;
  const auto epoch = static_cast<uint64_t>(position / samples_);
  return Permutation(samples_, mix(seed_) ^ mix(~epoch))(index);
}

}  // namespace pptrain::data

// In which order samples are seen. The whole state of a run's data is one number: how many samples were
// taken.
#pragma once

#include <cstdint>

namespace pptrain::data {

// A permutation of [0, size) that is computed, not stored: a keyed Feistel network over the smallest power of
// four that is large enough, walked until it lands inside (Black and Rogaway, "Ciphers with arbitrary finite
// domains", 2002). O(1) memory; under four network evaluations a call on average.
class Permutation {
 public:
  Permutation(int64_t size, uint64_t key);
  int64_t operator()(int64_t index) const;

 private:
  uint64_t encrypt(uint64_t value) const;
  int64_t size_;
  int half_bits_ = 1;
  uint64_t key_;
};

// Maps the n-th sample taken by the whole run (over all data ranks, from 0) to an index in the dataset. Each
// epoch of `samples` takes every index once: in order, or in an order that depends on (seed, epoch) alone.
class Sampler {
 public:
  // samples: at least 1.
  Sampler(int64_t samples, bool shuffle, uint64_t seed);
  int64_t operator()(int64_t position) const;
  int64_t samples() const { return samples_; }

 private:
  int64_t samples_;
  bool shuffle_;
  uint64_t seed_;
};

}  // namespace pptrain::data

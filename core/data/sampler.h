// The order in which samples are seen. The whole state of a run's data is one number: how many samples were
// taken.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace pptrain::data {

// Maps the n-th sample taken by the whole run (over all data ranks, from 0) to an index in the dataset. Each
// epoch of `samples` takes every index once: in order, or in an order that depends on (seed, epoch) alone and
// is computed, not stored.
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

// --- Which of several sources a sample comes from.

// A sample of one of several streams of tokens.
struct Sample {
  size_t stream = 0;
  int64_t index = 0;
  bool operator==(const Sample&) const = default;
};

// Sources mixed by weights. Sample n comes from the source that is most behind its share: weight * n minus
// the samples it had; the first of equal ones. This is Megatron-LM's blend (build_blending_indices in
// megatron/core/datasets/helpers.cpp), whose errors stay below one sample downwards.
//
// Shares are fractions of a common denominator W of at most 65536; after W samples each source has just its
// share, and the order repeats: the largest weight first (Megatron-LM then takes the first in its list). So
// it is a table of one period, and any sample's place is found at once, from its number alone.
class Blend {
 public:
  static constexpr int64_t max_period = 65536;

  // One weight (more than 0) or more; only their ratios count. W is the smallest number of which they are
  // fractions (to 1e-9); if there is none, 65536 with each share rounded to it by the largest remainders.
  // Throws UsageError if a weight is below 1 / 65536 of their sum.
  explicit Blend(std::span<const double> weights);

  // The source of the run's sample number `position`, from 0, and the sample's number among those of this
  // source: 0, 1, 2, ... Throws Error if `position` is negative.
  Sample operator()(int64_t position) const;
  // How many of the first `positions` samples each source has.
  std::vector<int64_t> taken(int64_t positions) const;

  int64_t period() const { return static_cast<int64_t>(order_.size()); }

 private:
  std::vector<int64_t> shares_;   // of a period, by source
  std::vector<uint16_t> order_;   // the source of each sample of a period
  std::vector<uint16_t> before_;  // samples of the same source before it in the period
};

}  // namespace pptrain::data

// Which of several sources a sample is of.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace pptrain::data {

// Sources mixed by weights: sample n is of the source that is most behind its share, weight * n minus the
// samples it had, the first of equal ones. This is Megatron-LM's blend (build_blending_indices in
// megatron/core/datasets/helpers.cpp), whose errors stay below one sample downwards.
//
// Shares are fractions of a common denominator W of at most 65536; after W samples each source has just its
// share, and the order repeats: the largest weight first (Megatron-LM then takes the first in its list). So
// it is a table of one period, and any sample's place is found at once, from its number alone.
class Blend {
 public:
  static constexpr int64_t max_period = 65536;

  // One weight (more than 0) or more; only their ratios count. W is the smallest one that they are fractions
  // of (to 1e-9); where there is none, 65536 with each share rounded to it by the largest remainders. Throws
  // UsageError where a weight is below 1 / 65536 of their sum.
  explicit Blend(std::span<const double> weights);

  struct Place {
    size_t source = 0;
    int64_t index = 0;  // among the samples of this source: 0, 1, 2, ...
    bool operator==(const Place&) const = default;
  };
  // Of the run's sample number `position`, from 0. Throws Error where it is negative.
  Place operator()(int64_t position) const;
  // How many of the first `positions` samples each source has.
  std::vector<int64_t> taken(int64_t positions) const;

  int64_t period() const { return static_cast<int64_t>(order_.size()); }
  // Of a period, by source.
  const std::vector<int64_t>& shares() const { return shares_; }

 private:
  std::vector<int64_t> shares_;
  std::vector<uint16_t> order_;   // the source of each sample of a period
  std::vector<uint16_t> before_;  // samples of the same source before it in the period
};

}  // namespace pptrain::data

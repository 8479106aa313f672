#include "core/data/sampler.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <string>

#include "core/base/error.h"
#include "core/base/split_mix.h"

namespace pptrain::data {

namespace {

// A keyed Feistel network over numbers of twice `half_bits`.
uint64_t encrypt(uint64_t value, int half_bits, uint64_t key) {
  constexpr uint64_t rounds = 8;
  const uint64_t mask = (uint64_t{1} << half_bits) - 1;
  uint64_t left = value >> half_bits;
  uint64_t right = value & mask;
  for (uint64_t round = 0; round < rounds; ++round) {
    const uint64_t scrambled = split_mix(split_mix(key + round) ^ right) & mask;
    const uint64_t next = left ^ scrambled;
    left = right;
    right = next;
  }
  return (left << half_bits) | right;
}

// The place of `index` in a permutation of [0, size): the network over the smallest power of four that is
// large enough, walked until it lands inside (Black and Rogaway, "Ciphers with arbitrary finite domains",
// 2002). O(1) memory; under four evaluations of the network on average.
int64_t permuted(int64_t index, int64_t size, uint64_t key) {
  const int bits = std::bit_width(static_cast<uint64_t>(size) - 1);
  const int half_bits = bits < 2 ? 1 : (bits + 1) / 2;
  auto value = static_cast<uint64_t>(index);
  do {
    value = encrypt(value, half_bits, key);
  } while (value >= static_cast<uint64_t>(size));
  return static_cast<int64_t>(value);
}

}  // namespace

Sampler::Sampler(int64_t samples, bool shuffle, uint64_t seed)
    : samples_(samples), shuffle_(shuffle), seed_(seed) {
  if (samples < 1) throw Error("a sampler needs at least one sample, not " + std::to_string(samples));
}

int64_t Sampler::operator()(int64_t position) const {
  if (position < 0) throw Error("sampler: position " + std::to_string(position) + " is negative");
  const int64_t index = position % samples_;
  if (!shuffle_) return index;
  const auto epoch = static_cast<uint64_t>(position / samples_);
  return permuted(index, samples_, split_mix(seed_) ^ split_mix(~epoch));
}

namespace {

constexpr double tolerance = 1e-9;  // of a share

// The weights as whole numbers of `period` altogether, if they are that.
std::optional<std::vector<int64_t>> exact_shares(const std::vector<double>& fractions, int64_t period) {
  std::vector<int64_t> shares;
  for (const double fraction : fractions) {
    const double share = fraction * static_cast<double>(period), whole = std::round(share);
    if (whole < 1 || std::abs(share - whole) > tolerance * static_cast<double>(period)) return std::nullopt;
    shares.push_back(static_cast<int64_t>(whole));
  }
  if (std::accumulate(shares.begin(), shares.end(), int64_t{0}) != period) return std::nullopt;
  return shares;
}

// Rounded down, plus one for those with the largest remainders.
std::vector<int64_t> rounded_shares(const std::vector<double>& fractions, int64_t period) {
  std::vector<int64_t> shares;
  std::vector<size_t> by_remainder(fractions.size());
  std::iota(by_remainder.begin(), by_remainder.end(), size_t{0});
  const auto share = [&](size_t i) { return fractions[i] * static_cast<double>(period); };
  for (size_t i = 0; i < fractions.size(); ++i) shares.push_back(static_cast<int64_t>(std::floor(share(i))));
  std::ranges::stable_sort(by_remainder, std::ranges::greater(),
                           [&](size_t i) { return share(i) - std::floor(share(i)); });
  const int64_t missing = period - std::accumulate(shares.begin(), shares.end(), int64_t{0});
  for (int64_t i = 0; i < missing; ++i) ++shares[by_remainder[static_cast<size_t>(i) % by_remainder.size()]];
  return shares;
}

std::vector<int64_t> shares_of(std::span<const double> weights) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<double> fractions;
  for (const double weight : weights) {
    const double fraction = weight / sum;
    if (!(fraction * static_cast<double>(Blend::max_period) >= 1)) {
      throw UsageError(
          fmt::format("a source's weight {} is {:.3g} of the sum of weights; it must be at least 1 / {}",
                      weight, fraction, Blend::max_period));
    }
    fractions.push_back(fraction);
  }
  for (int64_t period = 1; period <= Blend::max_period; ++period) {
    if (auto shares = exact_shares(fractions, period)) return *shares;
  }
  return rounded_shares(fractions, Blend::max_period);
}

}  // namespace

Blend::Blend(std::span<const double> weights) {
  if (weights.empty()) throw Error("a blend needs at least one source");
  shares_ = shares_of(weights);
  const int64_t period = std::accumulate(shares_.begin(), shares_.end(), int64_t{0});
  std::vector<int64_t> taken(shares_.size(), 0);
  for (int64_t n = 0; n < period; ++n) {
    size_t chosen = 0;
    int64_t largest = std::numeric_limits<int64_t>::min();
    for (size_t i = 0; i < shares_.size(); ++i) {
      // In units of 1 / period, so that all is exact. Of the first sample the weights themselves decide.
      const int64_t behind = shares_[i] * std::max<int64_t>(n, 1) - taken[i] * period;
      if (behind > largest) {
        largest = behind;
        chosen = i;
      }
    }
    order_.push_back(static_cast<uint16_t>(chosen));
    before_.push_back(static_cast<uint16_t>(taken[chosen]++));
  }
}

Sample Blend::operator()(int64_t position) const {
  if (position < 0) throw Error(fmt::format("blend: position {} is negative", position));
  const auto in_period = static_cast<size_t>(position % period());
  const size_t source = order_[in_period];
  return {.stream = source, .index = position / period() * shares_[source] + before_[in_period]};
}

std::vector<int64_t> Blend::taken(int64_t positions) const {
  std::vector<int64_t> counts(shares_.size());
  for (size_t i = 0; i < counts.size(); ++i) counts[i] = positions / period() * shares_[i];
  for (int64_t n = 0; n < positions % period(); ++n) ++counts[order_[static_cast<size_t>(n)]];
  return counts;
}

}  // namespace pptrain::data

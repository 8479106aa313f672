#include "core/nn/rope.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/IListRef.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>
#include <utility>
#include <vector>

#include "core/base/error.h"

namespace pptrain::nn {
namespace {

using at::Tensor;

const auto f32 = at::TensorOptions().dtype(at::kFloat);

// Every operation below is one of transformers' modeling_rope_utils.py, in its order: results have its bits.

// theta^(2i / dim): float32 [dim / 2].
Tensor powers(double theta, int64_t dim) {
  return at::pow(at::Scalar(theta), at::arange(0, dim, 2, f32) / static_cast<double>(dim));
}

Tensor dynamic_frequencies(const RopeConfig& c, int64_t length) {
  const auto longest = static_cast<double>(c.max_positions), dim = static_cast<double>(c.dim);
  const auto tokens = static_cast<double>(std::max(length, c.max_positions));
  const double factor = c.scaling.factor;
  return 1.0 / powers(c.theta * std::pow(factor * tokens / longest - (factor - 1), dim / (dim - 2)), c.dim);
}

// Wavelengths beyond the low-frequency bound are stretched by `factor`, those under the high-frequency bound
// kept, those between them interpolated.
Tensor llama3_frequencies(const RopeConfig& c) {
  const config::RopeScaling& s = c.scaling;
  const Tensor inv_freq = 1.0 / powers(c.theta, c.dim);
  const auto old_context = static_cast<double>(s.original_max_position_embeddings);
  const double low_wavelength = old_context / s.low_freq_factor;
  const double high_wavelength = old_context / s.high_freq_factor;
  const Tensor wavelength = 2 * std::numbers::pi / inv_freq;
  const Tensor stretched = at::where(wavelength > low_wavelength, inv_freq / s.factor, inv_freq);
  const Tensor smooth =
      (old_context / wavelength - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
  const Tensor smoothed = (1 - smooth) * stretched / s.factor + smooth * stretched;
  const Tensor between = (wavelength >= high_wavelength).logical_and(wavelength <= low_wavelength);
  return at::where(between, smoothed, stretched);
}

// The dims between which frequencies go from kept to interpolated.
std::pair<double, double> yarn_range(const RopeConfig& c) {
  const auto dim = static_cast<double>(c.dim);
  const auto old_context = static_cast<double>(c.scaling.original_max_position_embeddings);
  const auto dim_of = [&](double rotations) {
    return dim * std::log(old_context / (rotations * 2 * std::numbers::pi)) / (2 * std::log(c.theta));
  };
  double low = dim_of(c.scaling.beta_fast), high = dim_of(c.scaling.beta_slow);
  if (c.scaling.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1);
  return {low, low == high ? high + 0.001 : high};
}

Tensor yarn_frequencies(const RopeConfig& c) {
  const Tensor power = powers(c.theta, c.dim);
  const Tensor kept = 1.0 / power, interpolated = 1.0 / (c.scaling.factor * power);
  const auto [low, high] = yarn_range(c);
  const Tensor ramp = ((at::arange(c.dim / 2, f32) - low) / (high - low)).clamp(0, 1);
  const Tensor share = 1 - ramp;  // of what is kept
  return interpolated * (1 - share) + kept * share;
}

Tensor longrope_frequencies(const RopeConfig& c, int64_t length) {
  const config::RopeScaling& s = c.scaling;
  const bool is_long = length > s.original_max_position_embeddings;
  return 1.0 / (at::tensor(is_long ? s.long_factor : s.short_factor, f32) * powers(c.theta, c.dim));
}

Tensor frequencies(const RopeConfig& c, int64_t length) {
  using enum config::RopeType;
  switch (c.scaling.rope_type) {
    case none:
      return 1.0 / powers(c.theta, c.dim);
    case linear:
      return 1.0 / powers(c.theta, c.dim) / c.scaling.factor;
    case dynamic:
      return dynamic_frequencies(c, length);
    case llama3:
      return llama3_frequencies(c);
    case yarn:
      return yarn_frequencies(c);
    case longrope:
      return longrope_frequencies(c, length);
  }
  throw Error("unknown rope type");
}

double yarn_attention_factor(const config::RopeScaling& s) {
  const auto get = [&](double mscale) {
    return s.factor <= 1 ? 1.0 : 0.1 * mscale * std::log(s.factor) + 1.0;
  };
  return s.mscale != 0 && s.mscale_all_dim != 0 ? get(s.mscale) / get(s.mscale_all_dim) : get(1);
}

double longrope_attention_factor(const config::RopeScaling& s) {
  const auto old_context = static_cast<double>(s.original_max_position_embeddings);
  return s.factor <= 1 ? 1.0 : std::sqrt(1 + std::log(s.factor) / std::log(old_context));
}

// Multiplies cos and sin.
double attention_factor(const config::RopeScaling& s) {
  const config::RopeType type = s.rope_type;
  if (type != config::RopeType::yarn && type != config::RopeType::longrope) return 1;
  if (s.attention_factor > 0) return s.attention_factor;
  return type == config::RopeType::yarn ? yarn_attention_factor(s) : longrope_attention_factor(s);
}

void require(bool holds, const char* text) {
  if (!holds) throw Error(fmt::format("rotary table: {}", text));
}

void check(const RopeConfig& c, int64_t first, int64_t end) {
  const config::RopeType type = c.scaling.rope_type;
  require(c.dim > 0 && c.dim % 2 == 0 && 0 <= first && first < end,
          "needs an even dim and at least one position");
  require(type != config::RopeType::dynamic || (c.max_positions > 0 && c.dim > 2),
          "dynamic scaling needs max_position_embeddings, and heads of more than 2 dims");
  const auto fits = [&](const std::vector<double>& factors) { return std::ssize(factors) == c.dim / 2; };
  require(type != config::RopeType::longrope || (fits(c.scaling.short_factor) && fits(c.scaling.long_factor)),
          "longrope needs a short and a long factor for each two dims");
}

// The length that stands for all texts with equal frequencies.
int64_t deciding_length(const RopeConfig& config, int64_t length) {
  const int64_t original = config.scaling.original_max_position_embeddings;
  switch (config.scaling.rope_type) {
    case config::RopeType::dynamic:
      return std::max(length, config.max_positions);
    case config::RopeType::longrope:
      return length > original ? original + 1 : original;
    default:
      return 1;
  }
}

}  // namespace

kernels::RopeTable make_rope_table(const RopeConfig& config, int64_t length, int64_t first, int64_t end,
                                   at::Device device) {
  check(config, first, end);
  if (device.is_meta()) {
    const Tensor table = at::empty({end - first, config.dim / 2}, f32.device(device));
    return {.cos = table, .sin = table};
  }
  const Tensor angle = at::outer(at::arange(first, end, f32), frequencies(config, length));
  const double factor = attention_factor(config.scaling);
  const auto scaled = [&](const Tensor& x) {
    return tokens::to_device(factor == 1 ? x : x * factor, device);
  };
  return {.cos = scaled(angle.cos()), .sin = scaled(angle.sin())};
}

Rope::Rope(const RopeConfig& config, int64_t positions, at::Device device)
    : config_(config), positions_(positions), device_(device) {
  table(deciding_length(config, positions), positions);
}

// Above dynamic's maximum each length has its own frequencies.
bool Rope::keeps(int64_t length) const {
  return config_.scaling.rope_type != config::RopeType::dynamic || length <= config_.max_positions;
}

const kernels::RopeTable& Rope::table(int64_t length, int64_t end) {
  if (!keeps(length) && !tables_.contains(length)) {
    std::erase_if(tables_, [&](const auto& entry) { return !keeps(entry.first); });
  }
  kernels::RopeTable& table = tables_[length];
  if (!table.cos.defined() || table.cos.size(0) < end) {
    const int64_t beyond =
        keeps(length) ? static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(end))) : end;
    table = make_rope_table(config_, length, 0, end <= positions_ ? positions_ : beyond, device_);
  }
  return table;
}

Rotation Rope::turn(std::span<const TextPiece> pieces) {
  if (pieces.empty()) return {.table = table(deciding_length(config_, 1), 1)};
  const int64_t end = std::ranges::max(pieces, {}, &TextPiece::end).end();
  const int64_t length = deciding_length(config_, pieces.front().length);
  const bool alike = std::ranges::all_of(
      pieces, [&](const TextPiece& piece) { return deciding_length(config_, piece.length) == length; });
  // A text that grows by a token at a time has each length once.
  const bool again = keeps(length) || pieces.front().tokens > 1;
  if (alike && again) return {.table = table(length, end)};
  return turn_each(pieces, end);
}

// A row for each token.
Rotation Rope::turn_each(std::span<const TextPiece> pieces, int64_t end) {
  std::vector<Tensor> cos, sin;
  for (const TextPiece& piece : pieces) {
    const int64_t length = deciding_length(config_, piece.length);
    if (keeps(length)) {
      const kernels::RopeTable& all = table(length, end);
      cos.push_back(all.cos.narrow(0, piece.first, piece.tokens));
      sin.push_back(all.sin.narrow(0, piece.first, piece.tokens));
    } else {
      const kernels::RopeTable own = make_rope_table(config_, length, piece.first, piece.end(), device_);
      cos.push_back(own.cos);
      sin.push_back(own.sin);
    }
  }
  const kernels::RopeTable table{.cos = at::cat(cos), .sin = at::cat(sin)};
  return {.table = table, .rows = at::arange(table.cos.size(0), f32.dtype(at::kInt).device(device_))};
}

}  // namespace pptrain::nn

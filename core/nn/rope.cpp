#include "core/nn/rope.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
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

Tensor dynamic_frequencies(const RopeConfig& c, int64_t positions) {
  const auto longest = static_cast<double>(c.max_positions), dim = static_cast<double>(c.dim);
  const auto length = static_cast<double>(std::max(positions, c.max_positions));
  const double factor = c.scaling.factor;
  return 1.0 / powers(c.theta * std::pow(factor * length / longest - (factor - 1), dim / (dim - 2)), c.dim);
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

Tensor longrope_frequencies(const RopeConfig& c, int64_t positions) {
  const config::RopeScaling& s = c.scaling;
  const bool is_long = positions > s.original_max_position_embeddings;
  return 1.0 / (at::tensor(is_long ? s.long_factor : s.short_factor, f32) * powers(c.theta, c.dim));
}

Tensor frequencies(const RopeConfig& c, int64_t positions) {
  using enum config::RopeType;
  switch (c.scaling.rope_type) {
    case none:
      return 1.0 / powers(c.theta, c.dim);
    case linear:
      return 1.0 / powers(c.theta, c.dim) / c.scaling.factor;
    case dynamic:
      return dynamic_frequencies(c, positions);
    case llama3:
      return llama3_frequencies(c);
    case yarn:
      return yarn_frequencies(c);
    case longrope:
      return longrope_frequencies(c, positions);
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

void check(const RopeConfig& c, int64_t positions) {
  const config::RopeType type = c.scaling.rope_type;
  require(c.dim > 0 && c.dim % 2 == 0 && positions > 0, "needs an even dim and at least one position");
  require(type != config::RopeType::dynamic || (c.max_positions > 0 && c.dim > 2),
          "dynamic scaling needs max_position_embeddings, and heads of more than 2 dims");
  const auto fits = [&](const std::vector<double>& factors) { return std::ssize(factors) == c.dim / 2; };
  require(type != config::RopeType::longrope || (fits(c.scaling.short_factor) && fits(c.scaling.long_factor)),
          "longrope needs a short and a long factor for each two dims");
}

}  // namespace

kernels::RopeTable make_rope_table(const RopeConfig& config, int64_t positions, at::Device device) {
  check(config, positions);
  if (device.is_meta()) {
    const Tensor table = at::empty({positions, config.dim / 2}, f32.device(device));
    return {.cos = table, .sin = table};
  }
  const Tensor angle = at::outer(at::arange(positions, f32), frequencies(config, positions));
  const double factor = attention_factor(config.scaling);
  const auto scaled = [&](const Tensor& x) { return (factor == 1 ? x : x * factor).to(device); };
  return {.cos = scaled(angle.cos()), .sin = scaled(angle.sin())};
}

}  // namespace pptrain::nn

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

double scale_of(const RopeConfig& c) {
  return c.factor ? *c.factor
                  : static_cast<double>(c.max_positions) / static_cast<double>(c.original_positions);
}

Tensor dynamic_frequencies(const RopeConfig& c, int64_t positions) {
  const auto longest = static_cast<double>(c.max_positions), dim = static_cast<double>(c.dim);
  const auto length = static_cast<double>(std::max(positions, c.max_positions));
  const double factor = *c.factor;
  return 1.0 / powers(c.theta * std::pow(factor * length / longest - (factor - 1), dim / (dim - 2)), c.dim);
}

// Wavelengths beyond the low-frequency bound are stretched by `factor`, those under the high-frequency bound
// kept, those between them interpolated.
Tensor llama3_frequencies(const RopeConfig& c) {
  const Tensor inv_freq = 1.0 / powers(c.theta, c.dim);
  const auto old_context = static_cast<double>(c.original_positions);
  const double low_wavelength = old_context / c.low_freq_factor;
  const double high_wavelength = old_context / c.high_freq_factor;
  const Tensor wavelength = 2 * std::numbers::pi / inv_freq;
  const Tensor stretched = at::where(wavelength > low_wavelength, inv_freq / *c.factor, inv_freq);
  const Tensor smooth =
      (old_context / wavelength - c.low_freq_factor) / (c.high_freq_factor - c.low_freq_factor);
  const Tensor smoothed = (1 - smooth) * stretched / *c.factor + smooth * stretched;
  const Tensor between = (wavelength >= high_wavelength).logical_and(wavelength <= low_wavelength);
  return at::where(between, smoothed, stretched);
}

// The dims between which frequencies go from kept to interpolated.
std::pair<double, double> yarn_range(const RopeConfig& c) {
  const auto dim = static_cast<double>(c.dim);
  const auto dim_of = [&](double rotations) {
    return dim * std::log(static_cast<double>(c.original_positions) / (rotations * 2 * std::numbers::pi)) /
           (2 * std::log(c.theta));
  };
  double low = dim_of(c.beta_fast), high = dim_of(c.beta_slow);
  if (c.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1);
  return {low, low == high ? high + 0.001 : high};
}

Tensor yarn_frequencies(const RopeConfig& c) {
  const Tensor power = powers(c.theta, c.dim);
  const Tensor kept = 1.0 / power, interpolated = 1.0 / (scale_of(c) * power);
  const auto [low, high] = yarn_range(c);
  const Tensor ramp = ((at::arange(c.dim / 2, f32) - low) / (high - low)).clamp(0, 1);
  const Tensor share = 1 - ramp;  // of what is kept
  return interpolated * (1 - share) + kept * share;
}

Tensor longrope_frequencies(const RopeConfig& c, int64_t positions) {
  const std::vector<double>& factors = positions > c.original_positions ? c.long_factor : c.short_factor;
  return 1.0 / (at::tensor(factors, f32) * powers(c.theta, c.dim));
}

Tensor frequencies(const RopeConfig& c, int64_t positions) {
  switch (c.type) {
    case RopeType::none:
      return 1.0 / powers(c.theta, c.dim);
    case RopeType::linear:
      return 1.0 / powers(c.theta, c.dim) / *c.factor;
    case RopeType::dynamic:
      return dynamic_frequencies(c, positions);
    case RopeType::llama3:
      return llama3_frequencies(c);
    case RopeType::yarn:
      return yarn_frequencies(c);
    case RopeType::longrope:
      return longrope_frequencies(c, positions);
  }
  throw Error("unknown rope type");
}

double yarn_attention_factor(const RopeConfig& c) {
  const double scale = scale_of(c);
  const auto get = [&](double mscale) { return scale <= 1 ? 1.0 : 0.1 * mscale * std::log(scale) + 1.0; };
  return c.mscale != 0 && c.mscale_all_dim != 0 ? get(c.mscale) / get(c.mscale_all_dim) : get(1);
}

double longrope_attention_factor(const RopeConfig& c) {
  const double scale = scale_of(c);
  return scale <= 1 ? 1.0
                    : std::sqrt(1 + std::log(scale) / std::log(static_cast<double>(c.original_positions)));
}

double attention_factor(const RopeConfig& c) {
  if (c.type != RopeType::yarn && c.type != RopeType::longrope) return 1;
  if (c.attention_factor) return *c.attention_factor;
  return c.type == RopeType::yarn ? yarn_attention_factor(c) : longrope_attention_factor(c);
}

void require(bool holds, const char* text) {
  if (!holds) throw Error(fmt::format("rotary table: {}", text));
}

void check(const RopeConfig& c, int64_t positions) {
  using enum RopeType;
  require(c.dim > 0 && c.dim % 2 == 0 && positions > 0, "needs an even dim and at least one position");
  const bool by_ratio = c.type == yarn || c.type == longrope;
  const bool has_ratio = c.max_positions > 0 && c.original_positions > 0;
  require(c.type == none || c.factor || (by_ratio && has_ratio), "its scaling needs a factor");
  require(c.type != dynamic || (c.max_positions > 0 && c.dim > 2),
          "dynamic scaling needs max_position_embeddings, and heads of more than 2 dims");
  require((c.type != llama3 && !by_ratio) || c.original_positions > 0,
          "its scaling needs original_max_position_embeddings");
  const auto fits = [&](const std::vector<double>& factors) {
    return static_cast<int64_t>(factors.size()) == c.dim / 2;
  };
  require(c.type != longrope || (fits(c.short_factor) && fits(c.long_factor)),
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
  const double factor = attention_factor(config);
  const auto scaled = [&](const Tensor& x) { return (factor == 1 ? x : x * factor).to(device); };
  return {.cos = scaled(angle.cos()), .sin = scaled(angle.sin())};
}

}  // namespace pptrain::nn

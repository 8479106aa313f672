#include "core/nn/rope.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/where.h>
#include <spdlog/fmt/fmt.h>

#include <numbers>

#include "core/base/error.h"

namespace pptrain::nn {
namespace {

// Wavelengths beyond the low-frequency bound are stretched by `factor`, those under the high-frequency bound
// kept, those between them interpolated (Llama 3.1; the arithmetic of Hugging Face's rope_type "llama3").
at::Tensor scale_llama3(const at::Tensor& inv_freq, const config::RopeScaling& scaling) {
  const auto old_context = static_cast<double>(scaling.original_max_position_embeddings);
  const double low_wavelength = old_context / scaling.low_freq_factor;
  const double high_wavelength = old_context / scaling.high_freq_factor;
  const at::Tensor wavelength = 2 * std::numbers::pi / inv_freq;
  const at::Tensor stretched = at::where(wavelength > low_wavelength, inv_freq / scaling.factor, inv_freq);
  const at::Tensor smooth = (old_context / wavelength - scaling.low_freq_factor) /
                            (scaling.high_freq_factor - scaling.low_freq_factor);
  const at::Tensor smoothed = (1 - smooth) * stretched / scaling.factor + smooth * stretched;
  const at::Tensor between = (wavelength >= high_wavelength).logical_and(wavelength <= low_wavelength);
  return at::where(between, smoothed, stretched);
}

}  // namespace

kernels::RopeTable make_rope_table(int64_t head_dim, int64_t max_position, double theta,
                                   const config::RopeScaling& scaling, at::Device device) {
  if (head_dim <= 0 || head_dim % 2 != 0 || max_position <= 0) {
    throw Error(fmt::format(
        "a rotary table needs an even head_dim and at least one position, not head_dim = {} and {} positions",
        head_dim, max_position));
  }
  const auto options = at::TensorOptions().dtype(at::kFloat);
  if (device.is_meta()) {
    const at::Tensor table = at::empty({max_position, head_dim / 2}, options.device(device));
    return {.cos = table, .sin = table};
  }
  const at::Tensor exponent = at::arange(0, head_dim, 2, options) / static_cast<double>(head_dim);
  at::Tensor inv_freq = 1.0 / at::pow(at::Scalar(theta), exponent);
  if (scaling.rope_type == config::RopeType::linear) inv_freq = inv_freq / scaling.factor;
  if (scaling.rope_type == config::RopeType::llama3) inv_freq = scale_llama3(inv_freq, scaling);
  const at::Tensor angle = at::outer(at::arange(max_position, options), inv_freq);
  return {.cos = angle.cos().to(device), .sin = angle.sin().to(device)};
}

}  // namespace pptrain::nn

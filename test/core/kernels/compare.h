// How tests of kernels and layers compare with their oracles. The oracles compute in float64 with LibTorch's
// autograd.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstring>

#include "test/support/bounds.h"
#include "test/support/ops.h"
#include "test/support/seed.h"

namespace pptrain::test {

// ||actual - expected|| / ||expected||, NaN if either holds one.
inline Difference relative_error(const at::Tensor& actual, const at::Tensor& expected,
                                 CallSite place = CallSite::current()) {
  const at::Tensor a = actual.detach().to(at::kDouble).reshape({-1});
  const at::Tensor e = expected.detach().to(at::kDouble).reshape({-1});
  const double scale = e.norm().item<double>();
  return Difference((a - e).norm().item<double>() / (scale > 0 ? scale : 1), place);
}

// The largest absolute value and the 2-norm of a tensor of differences.
inline Difference largest(const at::Tensor& differences, CallSite place = CallSite::current()) {
  return Difference(differences.to(at::kDouble).abs().max().item<double>(), place);
}
inline Difference norm_of(const at::Tensor& differences, CallSite place = CallSite::current()) {
  return Difference(differences.to(at::kDouble).norm().item<double>(), place);
}

// The bound on a layer's rounding error, relative to its result's norm. One rounding costs at most half a
// unit of the last place: 2^-24 in float32, 2^-9 in bfloat16. In float32 the roundings inside sums count;
// they grow with the root of the number of terms: 64 for a few thousand. In bfloat16 these are negligible
// against the roundings of stored values: 8 for chains of up to 16, as part of them cancels in differences.
// At most half of the bound was seen with AVX2, AVX-512 and AVX512-BF16.
inline double tolerance(at::ScalarType type) {
  return type == at::kBFloat16 ? 8 * 0x1p-9 : 64 * 0x1p-24;
}

// The bound for a whole model's gradients in float32. Some tensors' sums cancel to an eighth of their terms.
inline constexpr double gradient_tolerance = 8 * 64 * 0x1p-24;

// For tensors on any device.
inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.cpu().contiguous();
  const at::Tensor y = b.cpu().contiguous();
  return x.scalar_type() == y.scalar_type() && x.sizes() == y.sizes() &&
         (x.nbytes() == 0 || std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0);
}

// A float64 leaf with the values of `tensor`, for the oracle.
inline at::Tensor leaf(const at::Tensor& tensor) {
  return tensor.detach().to(at::kDouble).clone().requires_grad_(true);
}

inline at::Tensor random(at::IntArrayRef shape, at::ScalarType type) {
  return at::randn(shape).to(type);
}

// Hugging Face's rotation of Llama: x cos + rotate_half(x) sin. x: [tokens, heads, head_dim]; cos, sin:
// [tokens, head_dim / 2].
inline at::Tensor rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  const auto halves = x.chunk(2, -1);
  const at::Tensor rotated = test::cat({-halves[1], halves[0]}, -1);
  const at::Tensor c = test::cat({cos, cos}, -1).unsqueeze(1);
  const at::Tensor s = test::cat({sin, sin}, -1).unsqueeze(1);
  return x * c + rotated * s;
}

inline at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return x * at::rsqrt(x.pow(2).mean(-1, true) + eps) * weight;
}

}  // namespace pptrain::test

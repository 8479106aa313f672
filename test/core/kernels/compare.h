// How tests of kernels and layers compare with their oracles, which compute in float64 with LibTorch's
// autograd.
#pragma once

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/IListRef.h>
#include <ATen/core/Tensor.h>

#include <cstring>

namespace pptrain::test {

// ||actual - expected|| / ||expected||, NaN if either holds one.
inline double relative_error(const at::Tensor& actual, const at::Tensor& expected) {
  const at::Tensor a = actual.detach().to(at::kDouble).reshape({-1});
  const at::Tensor e = expected.detach().to(at::kDouble).reshape({-1});
  const double scale = e.norm().item<double>();
  return (a - e).norm().item<double>() / (scale > 0 ? scale : 1);
}

// What one rounding to the type, or sums of a few thousand terms in float32, leave of accuracy. bfloat16
// keeps 8 bits: one rounding costs 2^-9 at most, and about 0.17 % in the norm; chains of a few roundings stay
// under 1 %.
inline double tolerance(at::ScalarType type) {
  return type == at::kBFloat16 ? 1e-2 : 2e-6;
}

// Of tensors on any device.
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

// x as Hugging Face's Llama rotates it: x cos + rotate_half(x) sin. x: [tokens, heads, head_dim]; cos, sin:
// [tokens, head_dim / 2].
inline at::Tensor rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  const auto halves = x.chunk(2, -1);
  const at::Tensor rotated = at::cat({-halves[1], halves[0]}, -1);
  const at::Tensor c = at::cat({cos, cos}, -1).unsqueeze(1);
  const at::Tensor s = at::cat({sin, sin}, -1).unsqueeze(1);
  return x * c + rotated * s;
}

inline at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return x * at::rsqrt(x.pow(2).mean(-1, true) + eps) * weight;
}

}  // namespace pptrain::test

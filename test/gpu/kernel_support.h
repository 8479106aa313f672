// Runs one piece of work on the CPU back end and on the CUDA kernels under test, and compares.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "core/kernels/backend.h"

namespace pptrain::test {

using at::Tensor;

// The functions of kernels.h as one back end has them, and the device of their tensors.
struct Backend {
  at::Device device;
  decltype(&kernels::cpu::rms_norm) rms_norm;
  decltype(&kernels::cpu::add_rms_norm) add_rms_norm;
  decltype(&kernels::cpu::rms_norm_backward) rms_norm_backward;
  decltype(&kernels::cpu::norm_rope) norm_rope;
  decltype(&kernels::cpu::norm_rope_backward) norm_rope_backward;
  decltype(&kernels::cpu::swiglu) swiglu;
  decltype(&kernels::cpu::swiglu_backward) swiglu_backward;
  decltype(&kernels::cpu::cross_entropy) cross_entropy;
  decltype(&kernels::cpu::embedding) embedding;
  decltype(&kernels::cpu::embedding_backward) embedding_backward;
  decltype(&kernels::cpu::accumulate_weight_gradient) accumulate_weight_gradient;
  decltype(&kernels::cpu::accumulate_bias_gradient) accumulate_bias_gradient;
  decltype(&kernels::cpu::adamw) adamw;
  decltype(&kernels::cpu::sum_of_squares) sum_of_squares;

  // Normal values times `scale`, the same for the same seed on every back end.
  Tensor random(at::IntArrayRef shape, at::ScalarType type, uint64_t seed, double scale = 1.0) const;
  // Integers in [0, high), of type int64.
  Tensor random_integers(int64_t high, int64_t count, uint64_t seed) const;
  // NaN everywhere: what a kernel forgets to write shows.
  Tensor output(at::IntArrayRef shape, at::ScalarType type) const;
};

const Backend& reference();
const Backend& subject();

// False, after a warning that ctest takes for a skip, when the kernels under test cannot run here.
bool can_run();

using Work = std::function<std::vector<Tensor>(const Backend&)>;

// The subject's results of `work` are the reference's within the tolerance, relative to the larger of 1 and
// the value in float32, and within one unit in the last place for bfloat16; and a second run repeats them bit
// for bit.
void compare(const Work& work, double tolerance = 2e-5);

bool same_bits(const Tensor& a, const Tensor& b);

// The same values at an address that is not a multiple of 16 bytes.
Tensor misaligned(const Tensor& x);

}  // namespace pptrain::test

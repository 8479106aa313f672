// Runs one piece of work on the CPU back end and on the CUDA kernels under test, and compares.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <functional>
#include <type_traits>
#include <vector>

#include "core/kernels/kernels.h"
#include "test/core/kernels/compare.h"

namespace pptrain::test {

using at::Tensor;

inline constexpr std::array types{at::kFloat, at::kBFloat16};
inline constexpr double eps = 1e-5;  // of norms

// One back end's kernels, called without the checks of kernels.h, and the device of its tensors.
struct Backend {
  at::Device device;
  kernels::BackEnd back_end;

  // b(kernels::swiglu, gate_up, y)
  template <class... Args>
  void operator()(const kernels::Kernel<void(Args...)>& kernel, std::type_identity_t<Args>... args) const {
    kernel.implementation(back_end)(args...);
  }

  // Normal values times `scale`; one seed gives the same values on every back end.
  Tensor random(at::IntArrayRef shape, at::ScalarType type, uint64_t seed, double scale = 1.0) const;
  // Integers in [0, high), of type int64.
  Tensor random_integers(int64_t high, int64_t count, uint64_t seed) const;
  // NaN everywhere, so elements that a kernel forgets to write show.
  Tensor output(at::IntArrayRef shape, at::ScalarType type) const;
};

const Backend& reference();
const Backend& subject();

// False if the kernels under test cannot run here, after a warning that ctest reads as a skip.
bool can_run();

using Work = std::function<std::vector<Tensor>(const Backend&)>;

// Checks that the subject's results of `work` equal the reference's within the tolerance: relative to the
// larger of 1 and the value in float32, one unit in the last place in bfloat16. A second run must repeat them
// bit for bit.
void compare(const Work& work, double tolerance = 2e-5);

// The same values at an address that is not a multiple of 16 bytes.
Tensor misaligned(const Tensor& x);

}  // namespace pptrain::test

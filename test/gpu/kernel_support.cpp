#include "test/gpu/kernel_support.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>

#include <limits>

#include "test/gpu/subject.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

namespace pptrain::test {

Tensor Backend::random(at::IntArrayRef shape, at::ScalarType type, uint64_t seed, double scale) const {
  return at::randn(shape, at::detail::createCPUGenerator(seed)).mul(scale).to(device, type);
}

Tensor Backend::random_integers(int64_t high, int64_t count, uint64_t seed) const {
  return at::randint(high, {count}, at::detail::createCPUGenerator(seed),
                     at::TensorOptions().dtype(at::kLong))
      .to(device);
}

Tensor Backend::output(at::IntArrayRef shape, at::ScalarType type) const {
  return at::full(shape, std::numeric_limits<double>::quiet_NaN(),
                  at::TensorOptions().dtype(type).device(device));
}

const Backend& reference() {
  static const Backend backend{at::kCPU, kernels::BackEnd::cpu};
  return backend;
}

const Backend& subject() {
  static const Backend backend{subject_device(), kernels::BackEnd::cuda};
  return backend;
}

bool can_run() {
  if (!subject_is_available()) {
    WARN("skipped: no CUDA device on this machine");
    return false;
  }
  at::set_num_threads(1);
  // Memory from at::empty then starts as NaN, so reads of unwritten workspace show.
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  at::globalContext().setDeterministicFillUninitializedMemory(true);
  return true;
}

void compare(const Work& work, double tolerance) {
  const std::vector<Tensor> expected = work(reference());
  const std::vector<Tensor> actual = work(subject());
  shake_order();
  const std::vector<Tensor> again = work(subject());
  REQUIRE(expected.size() == actual.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    INFO("result " << i);
    REQUIRE(actual[i].sizes() == expected[i].sizes());
    const double relative = actual[i].scalar_type() == at::kBFloat16 ? 1.0 / 128 : tolerance;
    const Tensor left = actual[i].cpu().to(at::kDouble);
    const Tensor right = expected[i].to(at::kDouble);
    INFO("largest difference " << (left.numel() == 0 ? 0.0 : (left - right).abs().max().item<double>()));
    CHECK(at::allclose(left, right, relative, tolerance));
    CHECK(same_bits(actual[i], again[i]));
  }
}

Tensor misaligned(const Tensor& x) {
  const Tensor room = at::empty({x.numel() + 1}, x.options());
  const Tensor copy = room.slice(0, 1).view(x.sizes());
  copy.copy_(x);
  return copy;
}

}  // namespace pptrain::test

#include "test/gpu/model_support.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>

#include <cstdlib>
#include <string_view>

#include "core/kernels/device_name.h"
#include "core/kernels/numerics.h"
#include "test/core/kernels/compare.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

namespace pptrain::test {

at::Device device_under_test() {
  const char* name = std::getenv("PPTRAIN_TEST_DEVICE");
  if (name != nullptr && std::string_view(name) == "cpu") return at::kCPU;
  return {at::kCUDA, 0};
}

bool device_is_there() {
  if (device_under_test().is_cuda() && kernels::gpu_count() == 0) {
    WARN("skipped: no CUDA device on this machine");
    return false;
  }
  at::set_num_threads(1);
  kernels::set_numerics(device_under_test().is_cuda(), /*deterministic=*/true);  // as a run does
  return true;
}

Tensor Place::values(at::IntArrayRef shape, uint64_t seed, double scale) const {
  return at::randn(shape, at::detail::createCPUGenerator(seed)).mul(scale).to(at::kBFloat16).to(device, type);
}

void fill_weights(nn::ParameterGroup& group) {
  constexpr uint64_t seed = 5;
  group.initialise(seed);
  for (nn::Slice* slice : group.slices()) {
    const nn::Role role = slice->spec.role;
    if (role == nn::Role::norm || role == nn::Role::bias || role == nn::Role::balance) {
      nn::ParameterSpec noise = slice->spec;
      noise.role = nn::Role::matrix;  // starts at random values
      noise.init_std = 0.2;
      Tensor values = at::empty_like(slice->master);
      nn::fill_initial_values(noise, slice->shape, seed, values);
      slice->master.add_(values);
    }
    slice->master.copy_(slice->master.to(at::kBFloat16));
  }
  group.refresh_compute();
}

void add_gradients(Results& results, nn::ParameterGroup& group) {
  for (const nn::Slice* slice : group.slices()) {
    if (slice->spec.name.ends_with("attn.k.bias")) continue;
    results["gradient of " + slice->spec.name] = slice->grad.clone();
  }
}

double model_tolerance(at::ScalarType type) {
  return type == at::kBFloat16 ? 1.5e-2 : 1e-4;
}

void compare_place(const PlacedWork& work, at::ScalarType type, double tolerance) {
  const Results expected = work({at::kCPU, at::kFloat});
  const Results actual = work({device_under_test(), type});
  const Results again = work({device_under_test(), type});
  REQUIRE(actual.size() == expected.size());
  for (const auto& [name, tensor] : expected) {
    INFO(name << " in " << toString(type));
    const Tensor found = actual.at(name).cpu();
    REQUIRE(found.sizes() == tensor.sizes());
    CHECK(relative_error(found, tensor) < tolerance);
    CHECK(same_bits(found, again.at(name)));
  }
}

void compare_places(const PlacedWork& work, double factor) {
  for (const auto type : {at::kFloat, at::kBFloat16})
    compare_place(work, type, factor * model_tolerance(type));
}

}  // namespace pptrain::test

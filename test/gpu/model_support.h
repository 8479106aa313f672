// Runs one piece of work on the CPU in float32 and on the device under test in each compute type, and
// compares.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "core/nn/parameter.h"

namespace pptrain::test {

using at::Tensor;

// The first GPU; or the CPU if the environment has PPTRAIN_TEST_DEVICE=cpu, to test the cases themselves.
at::Device device_under_test();

// False if there is no such device, after a warning that ctest reads as a skip.
bool device_is_there();

// The device and the type of a piece of work.
struct Place {
  at::Device device;
  at::ScalarType type;

  // Normal values times `scale`, rounded to bfloat16 first, so that one seed gives the same values at every
  // place.
  Tensor values(at::IntArrayRef shape, uint64_t seed, double scale = 1.0) const;
};

// Fills masters with the same values at every place: a seed's initial values, with noise if these are ones or
// zeros, rounded to bfloat16. Call `materialise` first.
void fill_weights(nn::ParameterGroup& group);

using Results = std::map<std::string, Tensor>;
using PlacedWork = std::function<Results(const Place&)>;

// Adds every main gradient of the group except a key bias's. The latter is only rounding, since a constant
// added to all keys does not change a softmax.
void add_gradients(Results& results, nn::ParameterGroup& group);

// Bound on the norm of the difference between results of chains of GEMMs and the CPU's float32. In float32
// the order of sums differs; GEMMs in TF32 would exceed the bound. bfloat16 rounds after every operation.
double model_tolerance(at::ScalarType type);

// Checks that `work` on the device under test, in float32 and in bfloat16, equals the CPU's in float32 within
// `factor` times the tolerance, and that a second run repeats it bit for bit.
void compare_places(const PlacedWork& work, double factor = 1.0);

// The same for one type.
void compare_place(const PlacedWork& work, at::ScalarType type, double tolerance);

}  // namespace pptrain::test

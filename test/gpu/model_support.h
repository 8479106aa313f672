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

// The first GPU; or the CPU where the environment has PPTRAIN_TEST_DEVICE=cpu, which tests the cases.
at::Device device_under_test();

// False, after a warning that ctest takes for a skip, when there is no such device.
bool device_is_there();

// Where a piece of work computes, and in which type.
struct Place {
  at::Device device;
  at::ScalarType type;

  // Normal values times `scale`, the same for the same seed at every place: rounded to bfloat16 first.
  Tensor values(at::IntArrayRef shape, uint64_t seed, double scale = 1.0) const;
};

// Masters that every place has alike: initial values of a seed, with noise where these are ones or zeros,
// rounded to bfloat16. `materialise` has been called.
void fill_weights(nn::ParameterGroup& group);

using Results = std::map<std::string, Tensor>;
using PlacedWork = std::function<Results(const Place&)>;

// Adds every main gradient of the group but that of a bias on keys, which is nothing but rounding: a constant
// added to all keys changes no softmax.
void add_gradients(Results& results, nn::ParameterGroup& group);

// How far results of chains of products may lie from the CPU's float32, in the norm. In float32 the sums of
// both differ in their order; products rounded to TF32 would show. bfloat16 rounds after every operation.
double model_tolerance(at::ScalarType type);

// `work` on the device under test, in float32 and in bfloat16, is the CPU's in float32 within `factor` times
// the tolerance, and a second run repeats it bit for bit.
void compare_places(const PlacedWork& work, double factor = 1.0);

// One type alone.
void compare_place(const PlacedWork& work, at::ScalarType type, double tolerance);

}  // namespace pptrain::test

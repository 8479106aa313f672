// The terms of the global gradient norm.
#pragma once

#include <span>
#include <vector>

#include "core/nn/parameter.h"

namespace pptrain::optim {

// Sum of squares of each slice's main gradient. Each depends on its gradient's values and size alone, so that
// the terms are the same on every layout that cuts parameters alike. Waits for the device once.
std::vector<double> squared_norms(std::span<nn::Slice* const> slices);

}  // namespace pptrain::optim

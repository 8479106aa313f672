// Squared gradient norms of one stage, the terms of the global norm.
#pragma once

#include <vector>

#include "core/nn/parameter.h"

namespace pptrain::optim {

// Sum of squares of each parameter's main gradient, in the order of store.parameters(). Each depends on its
// gradient's values and size alone, so that the terms are the same on every layout. Waits for the device
// once.
std::vector<double> squared_norms(const nn::ParameterStore& store);

}  // namespace pptrain::optim

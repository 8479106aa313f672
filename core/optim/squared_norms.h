// The terms of the global gradient norm.
#pragma once

#include <span>

#include "core/kernels/exact_sum.h"
#include "core/nn/parameter.h"

namespace pptrain::optim {

// The sum of squares of the slices' main gradients. Sums of slices that together are a stage's parameters
// have the same bits however groups are divided. Waits for the device once.
kernels::ExactSum sum_of_squares(std::span<nn::Slice* const> slices);

}  // namespace pptrain::optim

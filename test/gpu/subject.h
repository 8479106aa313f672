// What kernel_cases.cpp tests: the CUDA kernels on a GPU, or the same sources run by the emulator.
#pragma once

#include <ATen/core/Tensor.h>

namespace pptrain::test {

// Where the kernels under test take their tensors.
at::Device subject_device();

// Whether they can run on this machine. If not, the cases say so and pass; ctest reports the test as skipped.
bool subject_is_available();

// Called before a run that must repeat an earlier one bit for bit: changes whatever order may change.
void shake_order();

}  // namespace pptrain::test

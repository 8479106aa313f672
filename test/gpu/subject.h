// The subject of kernel_cases.cpp: the CUDA kernels on a GPU, or the same sources run by the emulator.
#pragma once

#include <ATen/core/Tensor.h>

namespace pptrain::test {

// The device of the tensors for the kernels under test.
at::Device subject_device();

// Whether they can run on this machine. If not, the cases say so and pass; ctest reports the test as skipped.
bool subject_is_available();

// Called before a run that must repeat an earlier one bit for bit: changes every order that may change.
void shake_order();

}  // namespace pptrain::test

// The memory-bound kernels of core/kernels/kernels.h, each at its shape in a block of the model.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "test/gpu/bench/bench.h"

namespace pptrain::bench {

struct KernelCase {
  std::string name;
  // Makes operands on a device; the result runs the kernel on them. On the meta device that is a dry run,
  // which gives the bytes that the kernel moves.
  std::function<std::function<void()>(at::Device device)> make;
};

std::vector<KernelCase> kernel_cases(const Sizes& sizes);

}  // namespace pptrain::bench

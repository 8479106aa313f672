// Which kernels a device runs, by LibTorch's profiler (Kineto).
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace pptrain::bench {

struct ProfiledKernel {
  std::string name;  // as the device's tools print it; on a CPU an operator of LibTorch
  int64_t calls = 0;
  double seconds = 0;
};

// The kernels that `work` runs on the device, which must be idle at its end, those with most time first. On a
// CPU operators that call others contain their times.
std::vector<ProfiledKernel> profile(c10::Device device, const std::function<void()>& work);

}  // namespace pptrain::bench

// A kind of GPU, as far as what libraries choose and take there depends on it.
#pragma once

namespace pptrain::kernels {

struct GpuKind {
  int capability = 0;       // 90 is 9.0, Hopper; 0: no GPU at all
  int multiprocessors = 0;  // of the device

  bool is_gpu() const { return capability > 0; }
  bool operator==(const GpuKind&) const = default;
};

}  // namespace pptrain::kernels

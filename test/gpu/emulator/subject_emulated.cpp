#include "core/kernels/cuda/cuda_api.h"
#include "test/gpu/subject.h"

namespace pptrain::test {

at::Device subject_device() {
  return at::kCPU;
}

bool subject_is_available() {
  return true;
}

void shake_order() {
  kernels::cuda::emulator::reversed = !kernels::cuda::emulator::reversed;
}

}  // namespace pptrain::test

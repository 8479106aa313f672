#include "core/base/error.h"
#include "core/kernels/device_name.h"

namespace pptrain::kernels {

int gpu_count() {
  return 0;
}

// Only where a driver is does a program with CUDA start.
std::string cuda_version() {
#ifdef PPTRAIN_CUDA_VERSION
  return PPTRAIN_CUDA_VERSION ", no driver";
#else
  return "";
#endif
}

std::string device_name(c10::Device) {
  throw Error("this pptrain was built without CUDA");
}

std::string device_uuid(c10::Device) {
  throw Error("this pptrain was built without CUDA");
}

std::string device_pci(c10::Device) {
  throw Error("this pptrain was built without CUDA");
}

int compute_capability(c10::Device) {
  throw Error("this pptrain was built without CUDA");
}

std::string why_no_fp8(c10::Device) {
  throw Error("this pptrain was built without CUDA");
}

int64_t device_memory(c10::Device) {
  throw Error("this pptrain was built without CUDA");
}

}  // namespace pptrain::kernels

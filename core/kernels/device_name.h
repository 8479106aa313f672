// Which GPUs there are, and the CUDA that this program is built with.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>

namespace pptrain::kernels {

// A kind of GPU, described by the numbers that decide what libraries choose and allocate there.
struct GpuKind {
  int capability = 0;       // 90 is 9.0, Hopper; 0: no GPU at all
  int multiprocessors = 0;  // of the device

  bool is_gpu() const { return capability > 0; }
  bool operator==(const GpuKind&) const = default;
};

// Number of GPUs that CUDA sees; 0 without a driver, a GPU, or a build with CUDA.
int gpu_count();
// "13.0, driver for 13.1", or "13.0, no driver"; "" in a build without CUDA.
std::string cuda_version();
// "NVIDIA H200". device: a CUDA device. Throws Error in a build without CUDA.
std::string device_name(c10::Device device);
// "GPU-6f3a1c92-...", as nvidia-smi has it. As device_name.
std::string device_uuid(c10::Device device);
// "0000:3b:00.0", its place in the host. As device_name.
std::string device_pci(c10::Device device);
// 10 times the major number, plus the minor one: 90 on Hopper. As device_name.
int compute_capability(c10::Device device);
// Why it cannot multiply in FP8; "" if it can, as GPUs from Ada and Hopper on. As device_name.
std::string why_no_fp8(c10::Device device);
// Bytes of the whole device. As device_name.
int64_t device_memory(c10::Device device);

}  // namespace pptrain::kernels

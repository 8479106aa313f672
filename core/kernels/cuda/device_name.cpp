#include "core/kernels/device_name.h"

#include <cuda_runtime_api.h>

#include <array>
#include <cstdio>

#include "core/base/error.h"

namespace pptrain::kernels {

int gpu_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;  // an error is: no driver, or no GPU
}

std::string cuda_version() {
  const auto text = [](int version) {
    return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
  };
  int runtime = 0, driver = 0;
  cudaRuntimeGetVersion(&runtime);
  const bool has_driver = cudaDriverGetVersion(&driver) == cudaSuccess && driver > 0;
  return text(runtime) + (has_driver ? ", driver for " + text(driver) : ", no driver");
}

namespace {

cudaDeviceProp properties_of(c10::Device device) {
  cudaDeviceProp properties{};
  const cudaError_t status = cudaGetDeviceProperties(&properties, device.index());
  if (status != cudaSuccess)
    throw Error(std::string("cudaGetDeviceProperties: ") + cudaGetErrorString(status));
  return properties;
}

}  // namespace

std::string device_name(c10::Device device) {
  return properties_of(device).name;
}

std::string device_uuid(c10::Device device) {
  constexpr const char* digits = "0123456789abcdef";
  std::string text = "GPU";
  const cudaDeviceProp properties = properties_of(device);
  for (size_t i = 0; i < sizeof(properties.uuid.bytes); ++i) {
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    const auto byte = static_cast<unsigned char>(properties.uuid.bytes[i]);
    text += {digits[byte / 16], digits[byte % 16]};
  }
  return text;
}

std::string device_pci(c10::Device device) {
  const cudaDeviceProp properties = properties_of(device);
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%04x:%02x:%02x.0", static_cast<unsigned>(properties.pciDomainID),
                static_cast<unsigned>(properties.pciBusID), static_cast<unsigned>(properties.pciDeviceID));
  return text.data();
}

int64_t device_memory(c10::Device device) {
  return static_cast<int64_t>(properties_of(device).totalGlobalMem);
}

int compute_capability(c10::Device device) {
  const auto attribute = [&](cudaDeviceAttr which) {
    int value = 0;
    const cudaError_t status = cudaDeviceGetAttribute(&value, which, device.index());
    if (status != cudaSuccess)
      throw Error(std::string("cudaDeviceGetAttribute: ") + cudaGetErrorString(status));
    return value;
  };
  return 10 * attribute(cudaDevAttrComputeCapabilityMajor) + attribute(cudaDevAttrComputeCapabilityMinor);
}

std::string why_no_fp8(c10::Device device) {
  const int capability = compute_capability(device);
  if (capability >= 89) return "";
  return device_name(device) + " (compute capability " + std::to_string(capability / 10) + "." +
         std::to_string(capability % 10) +
         ") does not multiply in FP8, which GPUs do from Ada (8.9) and Hopper on: set train.fp8 = \"off\"";
}

}  // namespace pptrain::kernels

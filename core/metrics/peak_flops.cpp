#include "core/metrics/peak_flops.h"

#include <ATen/ops/mm.h>
#include <ATen/ops/rand.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <string>
#include <string_view>
#include <utility>

#include "core/kernels/device_name.h"

namespace pptrain::metrics {

namespace {

// Dense bf16 tensor-core rates from NVIDIA's data sheets, in TFLOP/s; the first name contained in the
// device's counts.
constexpr std::array<std::pair<std::string_view, double>, 9> gpu_tflops{{
    {"H100 PCIe", 756},
    {"H100", 989},
    {"H200", 989},
    {"B200", 2250},
    {"A100", 312},
    {"L40S", 362},
    {"L4", 121},
    {"RTX 4090", 165},
    {"A10", 125},
}};

double measured_product_rate(bool bf16) {
  constexpr int64_t size = 1024;
  const auto options = at::TensorOptions(bf16 ? at::kBFloat16 : at::kFloat);
  const at::Tensor a = at::rand({size, size}, options), b = at::rand({size, size}, options);
  double best = 0;
  for (int i = 0; i < 5; ++i) {
    const auto start = std::chrono::steady_clock::now();
    at::mm(a, b);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    best = std::max(best, 2.0 * size * size * size / seconds);
  }
  return best;
}

}  // namespace

double peak_flops(c10::Device device, bool bf16) {
  if (device.is_cpu()) return measured_product_rate(bf16);
  const std::string name = kernels::device_name(device);
  for (const auto& [part, tflops] : gpu_tflops) {
    if (name.find(part) != std::string::npos) return tflops * 1e12;
  }
  return 0;
}

}  // namespace pptrain::metrics

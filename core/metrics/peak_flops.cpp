#include "core/metrics/peak_flops.h"

#include <ATen/ops/mm.h>
#include <ATen/ops/rand.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <string>
#include <string_view>

#include "core/kernels/device_name.h"

namespace pptrain::metrics {

namespace {

struct Gpu {
  std::string_view words;  // all of them are words of the device's name
  double tflops;
};

// Dense bf16 tensor-core rates with fp32 sums. Data sheets that print rates with sparsity alone are halved.
// Sources, all NVIDIA's: data sheets of A100, A800, A10, A30, A40, RTX A6000, L4, L40, L40S, H100 (SXM, PCIe,
// NVL), H200 (SXM, NVL), GH200, H20 and DGX B200; the Blackwell architecture's brief for GB200 (2.5 PFLOP/s
// a GPU); the Ada GPU architecture's white paper for the RTX 4090 and 6000 Ada, Ampere GA102's for the RTX
// 3090. The first that matches counts, so that what has more words comes first.
constexpr Gpu gpus[] = {
    {"H100 PCIe", 756},    {"H100 NVL", 835}, {"H100", 989},    {"H800 PCIe", 756},
    {"H800", 989},         {"H200 NVL", 835}, {"H200", 989},    {"GH200", 989},
    {"H20", 148},          {"B200", 2250},    {"GB200", 2500},  {"A100", 312},  // SXM and PCIe alike
    {"A800", 312},         {"A40", 150},      {"A30", 165},     {"A10", 125},
    {"RTX A6000", 155},    {"L40S", 362},     {"L40", 181},     {"L4", 121},
    {"RTX 6000 Ada", 364}, {"RTX 4090", 165}, {"RTX 3090", 71},
};

bool is_letter_or_digit(char c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

bool has_word(std::string_view text, std::string_view word) {
  for (size_t at = text.find(word); at != std::string_view::npos; at = text.find(word, at + 1)) {
    const size_t end = at + word.size();
    if ((at == 0 || !is_letter_or_digit(text[at - 1])) &&
        (end == text.size() || !is_letter_or_digit(text[end])))
      return true;
  }
  return false;
}

bool has_words(std::string_view text, std::string_view words) {
  while (!words.empty()) {
    const size_t end = std::min(words.find(' '), words.size());
    if (!has_word(text, words.substr(0, end))) return false;
    words.remove_prefix(std::min(end + 1, words.size()));
  }
  return true;
}

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

double known_peak_flops(std::string_view device_name) {
  if (has_word(device_name, "Laptop")) return 0;  // another chip than the name's
  const auto known =
      std::ranges::find_if(gpus, [&](const Gpu& gpu) { return has_words(device_name, gpu.words); });
  return known == std::end(gpus) ? 0 : known->tflops * 1e12;
}

double peak_flops(c10::Device device, bool bf16) {
  return device.is_cpu() ? measured_product_rate(bf16) : known_peak_flops(kernels::device_name(device));
}

}  // namespace pptrain::metrics

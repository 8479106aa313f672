#include "core/metrics/peak_flops.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <time.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "core/base/timing.h"
#include "core/kernels/device_name.h"
#include "core/kernels/kernels.h"

namespace pptrain::metrics {

namespace {

struct Gpu {
  std::string_view words;  // all of them are words of the device's name
  double tflops;
};

// Dense bf16 tensor-core rates with fp32 sums. Data sheets that print rates with sparsity alone are halved.
// All sources are NVIDIA's. Data sheets: A100, A800, A10, A30, A40, RTX A6000, L4, L40, L40S, H100 (SXM,
// PCIe, NVL), H200 (SXM, NVL), GH200, H20 and DGX B200. Architecture brief: Blackwell for GB200 (2.5 PFLOP/s
// a GPU). White papers: Ada for the RTX 4090 and 6000 Ada, Ampere GA102 for the RTX 3090. The first that
// matches counts, so names with more words come first.
constexpr Gpu gpus[] = {
    {"H100 PCIe", 756},    {"H100 NVL", 835}, {"H100", 989},    {"H800 PCIe", 756},
    {"H800", 989},         {"H200 NVL", 835}, {"H200", 989},    {"GH200", 989},
    {"H20", 148},          {"B200", 2250},    {"GB200", 2500},  {"A100", 312},  // SXM and PCIe alike
    {"A800", 312},         {"A40", 150},      {"A30", 165},     {"A10", 125},
    {"RTX A6000", 155},    {"L40S", 362},     {"L40", 181},     {"L4", 121},
    {"RTX 6000 Ada", 364}, {"RTX 4090", 165}, {"RTX 3090", 71},
};

bool has_word(std::string_view text, std::string_view word) {
  const auto is_letter_or_digit = [](unsigned char c) { return std::isalnum(c) != 0; };
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

using Clock = std::chrono::steady_clock;

// Times a call. If this thread computes alone, by its processor time, so that other work on its core in
// between does not count. With helpers, which may have to wait for a core each, by the time that passes.
class CallTimer {
 public:
  double seconds() const { return alone_ ? processor_seconds() - start_ : seconds_since(begin_); }

 private:
  static double processor_seconds() {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  }

  bool alone_ = at::get_num_threads() == 1;
  Clock::time_point begin_ = Clock::now();
  double start_ = processor_seconds();
};

// FLOP/s that `multiply` reaches on [size, size] matrices of that type, while sizes double and `budget`
// seconds last. A size is tried only if it must fit, with eight times the operations of the one before, so
// that a slow type ends at small matrices.
double gemm_rate(void (*multiply)(const at::Tensor& a, const at::Tensor& b), at::ScalarType type,
                 double budget) {
  constexpr int64_t smallest = 32, largest = 4096;
  constexpr int calls = 3;
  double best = 0;
  const auto begin = Clock::now();
  for (int64_t size = smallest; size <= largest; size *= 2) {
    // Values near one: denormal results would be slow.
    const at::Tensor a = at::full({size, size}, 0.5, type), b = at::full({size, size}, 0.25, type);
    const double flops = 2.0 * static_cast<double>(size * size * size);
    double shortest = std::numeric_limits<double>::infinity();
    for (int i = 0; i < calls && (i == 0 || seconds_since(begin) + shortest < budget); ++i) {
      const CallTimer timer;
      multiply(a, b);
      shortest = std::min(shortest, timer.seconds());
    }
    best = std::max(best, flops / shortest);
    if (seconds_since(begin) + 8 * shortest > budget) break;
  }
  return best;
}

double fastest_gemm_rate(bool bf16) {
  constexpr double budget = 0.2;  // s, of all
  using Tensor = at::Tensor;
  const auto forward = [](const Tensor& x, const Tensor& weight) {
    Tensor y = at::empty_like(x);
    kernels::linear(x, weight, std::nullopt, y);
  };
  const auto input_gradient = [](const Tensor& dy, const Tensor& weight) {
    Tensor dx = at::empty_like(dy);
    kernels::matmul(dy, weight, dx);
  };
  const auto weight_gradient = [](const Tensor& dy, const Tensor& x) {
    Tensor gradient = at::empty_like(x, at::kFloat);
    kernels::weight_gradient(dy, x, gradient);
  };
  std::vector<at::ScalarType> types = {at::kFloat};
  if (bf16) types.push_back(at::kBFloat16);
  double best = 0;
  for (const at::ScalarType type : types) {
    for (const auto multiply : std::initializer_list<void (*)(const Tensor&, const Tensor&)>{
             forward, input_gradient, weight_gradient}) {
      gemm_rate(multiply, type, 0);  // libraries prepare themselves in their first call
      best = std::max(best, gemm_rate(multiply, type, budget / static_cast<double>(3 * types.size())));
    }
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
  return device.is_cpu() ? fastest_gemm_rate(bf16) : known_peak_flops(kernels::device_name(device));
}

double utilization(double flops, double& peak) {
  if (peak == 0) return 0;
  peak = std::max(peak, flops);
  return flops / peak;
}

}  // namespace pptrain::metrics

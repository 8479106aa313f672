#include "core/metrics/peak_flops.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <time.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <vector>

#include "core/base/cores.h"
#include "core/kernels/kernels.h"
#include "core/metrics/progress_text.h"
#include "core/metrics/step_record.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

using pptrain::metrics::known_peak_flops;
using pptrain::metrics::peak_flops;
using pptrain::metrics::utilization;

namespace {

// Processor time of this thread: other work on the cores does not count.
double thread_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// FLOP/s of the layers' GEMMs at sizes of a job: 512 tokens, 768 inputs, 1,024 outputs.
double rate_of_layers(at::ScalarType type) {
  constexpr int64_t tokens = 512, inputs = 768, outputs = 1024;
  const at::Tensor x = at::ones({tokens, inputs}, type), dy = at::ones({tokens, outputs}, type),
                   weight = at::ones({outputs, inputs}, type);
  at::Tensor y = at::empty({tokens, outputs}, type), dx = at::empty({tokens, inputs}, type),
             gradient = at::empty({outputs, inputs}, at::kFloat);
  double shortest = std::numeric_limits<double>::infinity();
  for (int call = 0; call < 3; ++call) {
    const double begin = thread_seconds();
    pptrain::kernels::linear(x, weight, std::nullopt, y);
    pptrain::kernels::matmul(dy, weight, dx);
    pptrain::kernels::weight_gradient(dy, x, gradient);
    shortest = std::min(shortest, thread_seconds() - begin);
  }
  return 3 * 2.0 * tokens * inputs * outputs / shortest;
}

}  // namespace

TEST_CASE("a GPU is found by whole words of its name") {
  const auto tflops = [](const char* name) { return known_peak_flops(name) / 1e12; };
  CHECK(tflops("NVIDIA H100 80GB HBM3") == 989);
  CHECK(tflops("NVIDIA H100 PCIe") == 756);
  CHECK(tflops("NVIDIA H100 NVL") == 835);
  CHECK(tflops("NVIDIA H200") == 989);
  CHECK(tflops("NVIDIA H20") == 148);
  CHECK(tflops("NVIDIA GH200 480GB") == 989);
  CHECK(tflops("NVIDIA B200") == 2250);
  CHECK(tflops("NVIDIA GB200") == 2500);
  CHECK(tflops("NVIDIA A100-SXM4-80GB") == 312);
  CHECK(tflops("NVIDIA A100 80GB PCIe") == 312);
  CHECK(tflops("NVIDIA A10") == 125);
  CHECK(tflops("NVIDIA L4") == 121);
  CHECK(tflops("NVIDIA L40") == 181);
  CHECK(tflops("NVIDIA L40S") == 362);
  CHECK(tflops("NVIDIA RTX A6000") == 155);
  CHECK(tflops("NVIDIA GeForce RTX 4090") == 165);
  CHECK(tflops("NVIDIA A10G") == 0);
  CHECK(tflops("NVIDIA GeForce RTX 4090 Laptop GPU") == 0);  // another chip
  CHECK(tflops("Tesla V100-SXM2-16GB") == 0);
  CHECK(tflops("") == 0);
}

TEST_CASE("an MFU that is not known is null, and said") {
  const pptrain::metrics::StepRecord record{.step = 1, .tokens = 10, .tokens_per_s = 5, .step_time_s = 2};
  CHECK(nlohmann::json::parse(pptrain::metrics::to_json(record)).at("mfu").is_null());
  CHECK(pptrain::metrics::format_line(record, 2).find("mfu unknown") != std::string::npos);
}

TEST_CASE("the peak of a CPU is found in 0.3 s, whatever types are slow there", "[clock]") {
  at::set_num_threads(1);
  for (const bool bf16 : {false, true}) {
    CAPTURE(bf16);
    const double begin = thread_seconds();
    const double peak = peak_flops(at::kCPU, bf16);
    CHECK(thread_seconds() - begin < 0.3);
    CHECK(peak > 0.8 * rate_of_layers(at::kFloat));
    if (bf16) CHECK(peak > 0.8 * rate_of_layers(at::kBFloat16));
  }
}

TEST_CASE("ranks that look for their peaks on the same cores hardly lower them", "[clock]") {
  at::set_num_threads(1);
  const double alone = peak_flops(at::kCPU, false);
  const size_t ranks = 2 * static_cast<size_t>(pptrain::core_count());
  std::vector<double> peaks(ranks);
  {
    std::vector<std::jthread> threads;
    for (double& peak : peaks) {
      threads.emplace_back([&peak] {
        at::set_num_threads(1);
        peak = peak_flops(at::kCPU, false);
      });
    }
  }
  CHECK(std::ranges::max(peaks) > 0.3 * alone);  // two may share a core
}

TEST_CASE("a step that is faster than the peak becomes the peak") {
  double peak = 100, unknown = 0;
  CHECK(utilization(50, peak) == 0.5);
  CHECK(utilization(400, peak) == 1);
  CHECK(utilization(100, peak) == 0.25);
  CHECK(peak == 400);
  CHECK(utilization(50, unknown) == 0);
}

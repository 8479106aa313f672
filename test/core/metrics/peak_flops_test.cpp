#include "core/metrics/peak_flops.h"

#include <nlohmann/json.hpp>

#include "core/metrics/record_json.h"
#include "core/metrics/step_text.h"
#include "test/support/catch.h"

using pptrain::metrics::known_peak_flops;

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

// gpu_bench: the speed of the parts of a step on one device, as JSON. README.md describes the measurements.
#include <c10/core/Device.h>
#include <c10/core/InferenceMode.h>
#include <spdlog/fmt/fmt.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <fstream>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/kernels/device_name.h"
#include "core/kernels/out_of_memory.h"
#include "test/gpu/bench/sections.h"

namespace pptrain::bench {
namespace {

struct Arguments {
  std::string device = "cuda";
  double seconds = 10;
  bool small = false;
  std::vector<std::string> sections;
  std::string out;
};

void declare(CLI::App& cli, Arguments& arguments) {
  std::vector<std::string> names;
  for (const Section& section : sections()) names.emplace_back(section.name);
  cli.add_option("--device", arguments.device, "cuda or cpu")->check(CLI::IsMember({"cuda", "cpu"}));
  cli.add_option("--seconds", arguments.seconds, "of the sustained GEMMs in bf16 with the most rows")
      ->check(CLI::Range(0.001, 600.0));
  cli.add_flag("--small", arguments.small, "small sizes and short measurements, for a CPU");
  cli.add_option("--sections", arguments.sections, "which ones, with commas; all without it")
      ->delimiter(',')
      ->check(CLI::IsMember(names));
  cli.add_option("--out", arguments.out, "file of the figures, JSON")->required();
}

Json header(const Bench& bench, const Arguments& arguments) {
  const Sizes& sizes = bench.sizes();
  const bool gpu = bench.device().is_cuda();
  return {{"device", gpu ? kernels::device_name(bench.device()) : "cpu"},
          {"cuda", gpu ? kernels::cuda_version() : ""},
          {"small", arguments.small},
          {"sustained_seconds", arguments.seconds},
          {"peak_flops", bench.peak_flops()},
          {"sizes",
           {{"hidden", sizes.hidden},
            {"ffn", sizes.ffn},
            {"heads", sizes.heads},
            {"kv_heads", sizes.kv_heads},
            {"head_dim", sizes.head_dim},
            {"vocab", sizes.vocab}}},
          {"sections", Json::object()}};
}

// The section's state is "done", or "failed" with the message if it ended early; rows may have their own
// "error".
Json run_section(const Section& section, Bench& bench) {
  const auto start = std::chrono::steady_clock::now();
  Rows rows;
  Json result{{"state", "done"}};
  try {
    bench.reset_memory();
    section.run(bench, rows);
    bench.synchronise();
  } catch (const std::exception& error) {
    result = {{"state", "failed"}, {"error", kernels::plain_message(error)}};
  }
  result["section_s"] = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  result["rows"] = rows.json();
  return result;
}

// A trial's error is its result: the device has no such GEMM.
bool has_failed(const Json& section) {
  return section["state"] != "done" || std::ranges::any_of(section["rows"], [](const Json& row) {
           return row.contains("error") && !row.contains("trial");
         });
}

void write(const Json& report, const std::string& path) {
  std::ofstream file(path);
  file << report.dump(1) << '\n';
  if (!file.flush()) throw Error(fmt::format("{} cannot be written", path));
}

// The file is written after each section, so that a crash leaves the earlier ones.
int run(const Arguments& arguments) {
  const c10::InferenceMode inference;
  const at::Device device = arguments.device == "cuda" ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU);
  if (device.is_cuda() && kernels::gpu_count() == 0) {
    fmt::print(stderr,
               "gpu_bench: CUDA sees no GPU on this machine; --device cpu --small runs without one\n");
    return 2;
  }
  Bench bench(device, arguments.small, arguments.seconds);
  Json report = header(bench, arguments);
  bool failed = false;
  for (const Section& section : sections()) {
    const auto& chosen = arguments.sections;
    if (!chosen.empty() && std::ranges::find(chosen, section.name) == chosen.end()) continue;
    const Json result = run_section(section, bench);
    fmt::print("{} ({:.1f} s){}\n{}\n", section.name, result["section_s"].get<double>(),
               result["state"] == "done" ? "" : ": failed: " + result["error"].get<std::string>(),
               table(result["rows"], section.columns));
    std::fflush(stdout);
    failed = failed || has_failed(result);
    report["sections"][std::string(section.name)] = result;
    write(report, arguments.out);
  }
  return failed ? 1 : 0;
}

}  // namespace
}  // namespace pptrain::bench

int main(int count, char** words) {
  CLI::App cli("Measures the parts of a step on one device.", "gpu_bench");
  pptrain::bench::Arguments arguments;
  pptrain::bench::declare(cli, arguments);
  CLI11_PARSE(cli, count, words);
  try {
    return pptrain::bench::run(arguments);
  } catch (const std::exception& error) {
    fmt::print(stderr, "gpu_bench: {}\n", pptrain::kernels::plain_message(error));
    return 2;
  }
}

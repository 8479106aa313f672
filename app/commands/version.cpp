#include "app/commands/commands.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <ATen/Version.h>
#include <openssl/opensslv.h>
#include <pcre2.h>
#include <spdlog/fmt/fmt.h>
#include <spdlog/version.h>
#include <torch/version.h>
#include <utf8proc.h>
#include <xxhash.h>

#include <CLI/Version.hpp>
#include <exception>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "core/base/cores.h"
#include "core/kernels/cpu/loops.h"
#include "core/kernels/device_name.h"
#include "core/metrics/step_record.h"
#include "parallel/comm/mpi/mpi_communicator.h"
#include "parallel/comm/nccl/nccl_communicator.h"

namespace pptrain::app {
namespace {

#if defined(__clang__)
constexpr const char* compiler = "Clang " __clang_version__;
#else
constexpr const char* compiler = "GCC " __VERSION__;
#endif

std::string torch_text() {
  const std::string dnn = metrics::version_number(at::get_mkldnn_version());
  const std::string mkl = metrics::version_number(at::get_mkl_version());
  return fmt::format("{}{}{}", TORCH_VERSION, dnn.empty() ? "" : ", oneDNN " + dnn,
                     mkl.empty() ? "" : ", MKL " + mkl);
}

std::string library_text() {
  const int fmt_version = FMT_VERSION;
  return fmt::format(
      "fmt {}.{}.{}, spdlog {}.{}.{}, toml++ {}, CLI11 {}, nlohmann-json {}.{}.{}, OpenSSL {}, PCRE2 {}.{}, "
      "utf8proc {}.{}.{}, xxHash {}.{}.{}",
      fmt_version / 10000, fmt_version / 100 % 100, fmt_version % 100, SPDLOG_VER_MAJOR, SPDLOG_VER_MINOR,
      SPDLOG_VER_PATCH, PPTRAIN_TOML_VERSION, CLI11_VERSION, NLOHMANN_JSON_VERSION_MAJOR,
      NLOHMANN_JSON_VERSION_MINOR, NLOHMANN_JSON_VERSION_PATCH, OPENSSL_VERSION_STR, PCRE2_MAJOR, PCRE2_MINOR,
      UTF8PROC_VERSION_MAJOR, UTF8PROC_VERSION_MINOR, UTF8PROC_VERSION_PATCH, XXH_VERSION_MAJOR,
      XXH_VERSION_MINOR, XXH_VERSION_RELEASE);
}

std::string cuda_text() {
  const std::string cuda = kernels::cuda_version(), nccl = comm::nccl_version();
  if (cuda.empty()) return "built without";
  return cuda + (nccl.empty() ? "" : ", NCCL " + nccl);
}

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "a processor without a name";
}

std::string cpu_text() {
  return fmt::format("{}, {} cores; kernels {}, ATen {}", processor_name(), core_count(),
                     kernels::cpu::loops().isa, at::get_cpu_capability());
}

std::string gpu_text() {
  std::string text;
  try {
    for (int i = 0; i < kernels::gpu_count(); ++i) {
      text += text.empty() ? "" : ", ";
      text += kernels::device_name(c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(i)));
    }
  } catch (const std::exception& error) {
    text += error.what();
  }
  return text.empty() ? "none" : text;
}

}  // namespace

std::string version_text(const std::string& commit) {
  std::string text = fmt::format("pptrain {}", PPTRAIN_VERSION);
  const auto line = [&](const char* name, const std::string& what) {
    text += fmt::format("\n{:<10} {}", name, what);
  };
  if (!commit.empty()) line("commit", commit);
  line("built", fmt::format("{}, {}", compiler, PPTRAIN_BUILD_TYPE));
  line("LibTorch", torch_text());
  line("MPI", comm::mpi_flavor() == comm::MpiFlavor::none ? "built without" : comm::mpi_version());
  line("CUDA", cuda_text());
  line("libraries", library_text());
  line("CPU", cpu_text());
  line("GPUs", gpu_text());
  return text;
}

}  // namespace pptrain::app

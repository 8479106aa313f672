#include "core/kernels/gpu_fault.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <utility>

namespace pptrain::kernels {
namespace {

constexpr std::string_view damaged =
    "the GPU's hardware is faulty: take this GPU out, and go on without it; nvidia-smi -q shows its errors";
constexpr std::string_view damaged_link =
    "a link between GPUs is faulty: take this host out, and go on without it; nvidia-smi nvlink -e shows "
    "errors";
constexpr std::string_view bad_kernel =
    "a kernel has failed. If it happens again on another GPU, it is a fault of this program: please report "
    "it, with what CUDA_LAUNCH_BLOCKING=1 in the environment says. If only on this one, take the GPU out";
constexpr std::string_view unavailable =
    "another process has the GPU for itself, or it is lost: see nvidia-smi";
constexpr std::string_view other_gpus =
    "this pptrain was compiled for other GPUs: build it with CUDAARCHS=80 in the environment, or another "
    "compute capability without its point";

// CUDA 13.0's words.
constexpr auto advice_by_words = std::to_array<std::pair<std::string_view, std::string_view>>({
    {"uncorrectable ECC error", damaged},
    {"hardware error", damaged},
    {"hardware stack error", damaged},
    {"uncorrectable NVLink error", damaged_link},
    {"illegal memory access", bad_kernel},
    {"unspecified launch failure", bad_kernel},
    {"misaligned address", bad_kernel},
    {"illegal instruction", bad_kernel},
    {"invalid program counter", bad_kernel},
    {"device-side assert", bad_kernel},
    {"busy or unavailable", unavailable},
    {"no kernel image", other_gpus},
});

}  // namespace

std::string advice_on_gpu_fault(std::string_view message) {
  const auto found = std::ranges::find_if(advice_by_words, [&](const auto& entry) {
    return message.find(entry.first) != std::string_view::npos;
  });
  return found == advice_by_words.end() ? "" : std::string(found->second);
}

std::string with_gpu_fault(const std::string& message, const std::string& gpu, const std::string& host) {
  const std::string advice = advice_on_gpu_fault(message);
  return advice.empty() ? message : fmt::format("{}\n{} of host {}: {}", message, gpu, host, advice);
}

}  // namespace pptrain::kernels

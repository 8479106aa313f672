// How often LibTorch makes the host wait for the GPU.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

namespace pptrain::bench {

// Runs `work` and counts this thread's waits that LibTorch reports in its mode for finding them: reading a
// value, copying to memory that is not pinned. Code that calls CUDA directly (cuBLAS, cuDNN, our own kernels)
// is not counted. Nothing in a build without CUDA.
std::optional<int64_t> count_host_waits(const std::function<void()>& work);

}  // namespace pptrain::bench

// What users can do about a GPU that has failed.
#pragma once

#include <string>
#include <string_view>

namespace pptrain::kernels {

// By the kind of fault, which CUDA's words for it (cudaGetErrorString) in `message` tell; "" if there are
// none. Such errors stay until the process ends.
std::string advice_on_gpu_fault(std::string_view message);

// The message with the GPU ("NVIDIA H100 (GPU-6f3a...)"), the host and the advice; as it is if it tells no
// fault of a GPU.
std::string with_gpu_fault(const std::string& message, const std::string& gpu, const std::string& host);

}  // namespace pptrain::kernels

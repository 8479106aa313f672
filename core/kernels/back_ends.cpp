#include "core/kernels/back_ends.h"

#include <spdlog/fmt/fmt.h>

#include "core/base/error.h"

namespace pptrain::kernels {

void define_kernels() {
  [[maybe_unused]] static const bool defined = [] {
    add_contracts();
    cpu::add_kernels();
    cuda::add_kernels();
    return true;
  }();
}

void fail_without_implementation(std::string_view kernel, BackEnd back_end) {
  if (back_end == BackEnd::cuda && !cuda::is_built()) {
    throw Error(
        "A tensor lies on a CUDA device, but this pptrain was built without CUDA. Put nvcc on PATH and build "
        "again, or set run.device = \"cpu\".");
  }
  throw Error(fmt::format("kernel {} has no implementation for {}", kernel,
                          back_end == BackEnd::cuda ? "CUDA" : "the CPU"));
}

void fail_without_parts(std::string_view kernel) {
  throw Error(fmt::format("kernel {}: the list of parts is empty", kernel));
}

}  // namespace pptrain::kernels

#include "core/kernels/gpu_fault.h"

#include "test/support/catch.h"

using namespace pptrain;
using pptrain::test::contains_text;

TEST_CASE("faults of a GPU are told with the GPU, the host and what to do") {
  const auto told = [](const std::string& message) {
    return kernels::with_gpu_fault("rank 3: " + message, "NVIDIA H100 (GPU-6f3a)", "node7");
  };
  CHECK_THAT(
      told("CUDA error: uncorrectable ECC error encountered"),
      contains_text("encountered\nNVIDIA H100 (GPU-6f3a) of host node7: the GPU's hardware is faulty"));
  CHECK_THAT(told("CUDA error: uncorrectable NVLink error detected during the execution"),
             contains_text("take this host out"));
  CHECK_THAT(told("CUDA error: Invalid access of peer GPU memory over nvlink or a hardware error"),
             contains_text("hardware is faulty"));
  CHECK_THAT(told("CUDA error: unspecified launch failure"), contains_text("CUDA_LAUNCH_BLOCKING=1"));
  CHECK_THAT(told("CUDA error: an illegal memory access was encountered"),
             contains_text("a kernel has failed"));
  CHECK_THAT(told("CUDA error: CUDA-capable device(s) is/are busy or unavailable"),
             contains_text("nvidia-smi"));
  CHECK_THAT(told("CUDA kernel rms_norm: no kernel image is available for execution on the device"),
             contains_text("CUDAARCHS=80"));
}

TEST_CASE("other messages stay as they are") {
  for (const std::string message : {"", "rank 1: the loss is not finite", "CUDA out of memory"}) {
    CHECK(kernels::advice_on_gpu_fault(message).empty());
    CHECK(kernels::with_gpu_fault(message, "NVIDIA H100", "node7") == message);
  }
}

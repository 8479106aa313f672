#include "core/kernels/numerics.h"

#include <ATen/Context.h>

#include <cstdlib>

namespace pptrain::kernels {

void set_numerics(bool cuda, bool deterministic) {
  if (!cuda) return;
  if (deterministic) setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  at::globalContext().setDeterministicAlgorithms(deterministic, /*warn_only=*/false);
  at::globalContext().setDeterministicFillUninitializedMemory(false);
  // ATen's attention by cuDNN makes a plan for each number of keys, and keeps it: one a generated token.
  at::globalContext().setSDPUseCuDNN(false);
}

}  // namespace pptrain::kernels

// What dispatch.cpp chooses from: every function of kernels.h, once per back end. cpu:: lives in
// core/kernels/cpu; cuda:: in core/kernels/cuda, where no_cuda.cpp stands in (and throws) when the program is
// built without CUDA.
#pragma once

#include "core/kernels/kernels.h"

namespace pptrain::kernels::cpu {
#include "core/kernels/backend_functions.inc"
}  // namespace pptrain::kernels::cpu

namespace pptrain::kernels::cuda {
#include "core/kernels/backend_functions.inc"
}  // namespace pptrain::kernels::cuda

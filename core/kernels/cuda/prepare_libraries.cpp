#include "core/kernels/cuda/prepare_libraries.h"

#include <ATen/Context.h>

namespace pptrain::kernels::cuda {

void prepare_libraries() {
  at::globalContext().setAllowBF16ReductionCuBLAS(/*allow_reduced_precision=*/false, /*allow_splitk=*/true);
}

}  // namespace pptrain::kernels::cuda

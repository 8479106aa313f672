// What CUDA's libraries are told once for the whole process.
#pragma once

namespace pptrain::kernels::cuda {

// Products that go through ATen (those of Muon) sum in float32 and round once, as kernels.h promises of the
// others: cuBLAS may then not add partial sums in bfloat16, which LibTorch allows it by default.
void prepare_libraries();

}  // namespace pptrain::kernels::cuda

// Loops for processors with the instructions that CMakeLists.txt names for this file; on x86-64 alone.
#define PPTRAIN_ISA avx2
#include "core/kernels/cpu/loops.inc"

namespace pptrain::kernels::cpu {

constinit const Loops avx2_table = avx2::make_table("avx2");

}  // namespace pptrain::kernels::cpu

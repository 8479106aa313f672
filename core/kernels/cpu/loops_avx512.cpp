// Loops for processors with the instructions that CMakeLists.txt names for this file; on x86-64 alone.
#define PPTRAIN_ISA avx512
#include "core/kernels/cpu/loops.inc"

namespace pptrain::kernels::cpu {

constinit const Loops avx512_table = avx512::make_table("avx512");

}  // namespace pptrain::kernels::cpu

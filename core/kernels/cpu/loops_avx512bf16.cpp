// Loops for processors with the instructions that CMakeLists.txt names for this file; on x86-64 alone.
#define PPTRAIN_ISA avx512bf16
#include "core/kernels/cpu/loops.inc"

namespace pptrain::kernels::cpu {

constinit const Loops avx512bf16_table = avx512bf16::make_table("avx512bf16");

}  // namespace pptrain::kernels::cpu

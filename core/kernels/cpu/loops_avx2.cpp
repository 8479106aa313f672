// Loops for processors with the instructions that CMakeLists.txt names for this file. Off x86-64 there are
// none.
#if defined(__x86_64__)
#define PPTRAIN_ISA avx2
#include "core/kernels/cpu/loops.inc"

namespace pptrain::kernels::cpu {

const Loops* avx2_loops() {
  static constexpr Loops table = avx2::make_table("avx2");
  const bool supported = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return supported ? &table : nullptr;
}

}  // namespace pptrain::kernels::cpu
#else
#include "core/kernels/cpu/loops.h"

namespace pptrain::kernels::cpu {

const Loops* avx2_loops() {
  return nullptr;
}

}  // namespace pptrain::kernels::cpu
#endif

// Loops for processors with the instructions that CMakeLists.txt names for this file. Off x86-64 there are
// none.
#if defined(__x86_64__)
#define PPTRAIN_ISA avx512
#include "core/kernels/cpu/loops.inc"

namespace pptrain::kernels::cpu {

const Loops* avx512_loops() {
  static constexpr Loops table = avx512::make_table("avx512");
  const bool supported = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                         __builtin_cpu_supports("fma");
  return supported ? &table : nullptr;
}

}  // namespace pptrain::kernels::cpu
#else
#include "core/kernels/cpu/loops.h"

namespace pptrain::kernels::cpu {

const Loops* avx512_loops() {
  return nullptr;
}

}  // namespace pptrain::kernels::cpu
#endif

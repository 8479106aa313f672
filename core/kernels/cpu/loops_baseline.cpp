// Loops for any processor that the compiler targets by default.
#define PPTRAIN_ISA baseline
#include "core/kernels/cpu/loops.inc"

namespace pptrain::kernels::cpu {

const Loops* baseline_loops() {
  static constexpr Loops table = baseline::make_table("baseline");
  return &table;
}

}  // namespace pptrain::kernels::cpu

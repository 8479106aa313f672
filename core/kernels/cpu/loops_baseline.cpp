// Loops for any processor that the compiler targets by default.
#define PPTRAIN_ISA baseline
#include "core/kernels/cpu/loops.inc"

namespace pptrain::kernels::cpu {

constinit const Loops baseline_table = baseline::make_table("baseline");

}  // namespace pptrain::kernels::cpu

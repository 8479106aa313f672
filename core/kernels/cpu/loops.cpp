#include "core/kernels/cpu/loops.h"

#include <initializer_list>

namespace pptrain::kernels::cpu {
namespace {

const Loops* best_loops() {
  for (const Loops* table : {avx512bf16_loops(), avx512_loops(), avx2_loops()}) {
    if (table != nullptr) {
      return table;
    }
  }
  return baseline_loops();
}

}  // namespace

const Loops& loops() {
  static const Loops& best = *best_loops();
  return best;
}

}  // namespace pptrain::kernels::cpu

#include "parallel/comm/rank_order_sum.h"

namespace pptrain::comm {

// a + b has the bits of b + a, so the sum may start in either operand.
void sum_in_rank_order(at::Tensor own, at::Tensor others, int me, int size) {
  if (me == 0) {
    for (int r = 1; r < size; ++r) own.add_(others.select(0, r));
    return;
  }
  at::Tensor sum = others.select(0, 0);
  for (int r = 1; r < me; ++r) sum.add_(others.select(0, r));
  own.add_(sum);
  for (int r = me + 1; r < size; ++r) own.add_(others.select(0, r));
}

}  // namespace pptrain::comm

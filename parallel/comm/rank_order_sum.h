// The order of a sum over ranks, for transports that reduce by themselves.
#pragma once

#include <ATen/core/Tensor.h>

namespace pptrain::comm {

// own <- ((x0 + x1) + x2) + ..., where x_me is `own` [n], and the others are the rows of `others` [size, n],
// which is scratch afterwards; its row `me` is not read. On the tensors' device.
void sum_in_rank_order(at::Tensor own, at::Tensor others, int me, int size);

}  // namespace pptrain::comm

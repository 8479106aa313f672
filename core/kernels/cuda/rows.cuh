// Launches of kernels with one block a row, whose threads share the row's packs out.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "core/kernels/cuda/device.cuh"
#include "core/kernels/cuda/host.h"

namespace pptrain::kernels::cuda {

// Calls run(T{}, is_vector, blocks, threads) on the device of `rows`, T [count, dim]; does nothing where it
// has no elements. is_vector is true where rows are whole packs and `operands`, which packs are read from or
// written to, are aligned.
template <typename Run, typename... Operands>
void for_rows(const char* name, const Tensor& rows, int64_t most_threads, const Run& run,
              const Operands&... operands) {
  if (rows.numel() == 0) {
    return;
  }
  const DeviceGuard guard(rows.device());
  with_type(rows.scalar_type(), name, [&](auto tag) {
    constexpr int width = pack_width<decltype(tag)>;
    const int64_t dim = rows.size(1);
    with_bool(dim % width == 0 && are_aligned(input<char>(operands)...), [&](auto is_vector) {
      run(tag, is_vector, grid_size(rows.size(0), name), threads_for(ceil_div(dim, width), most_threads));
    });
  });
}

}  // namespace pptrain::kernels::cuda

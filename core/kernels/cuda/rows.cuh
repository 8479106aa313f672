// Launches of kernels whose threads take packs of rows.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "core/kernels/cuda/device.cuh"
#include "core/kernels/cuda/host.h"

namespace pptrain::kernels::cuda {

// Calls run(T{}, is_vector) on the device of `rows`, T [count, dim]; does nothing if it has no elements.
// is_vector is true if rows are whole packs and `operands`, which packs are read from or written to, are
// aligned.
template <typename Run, typename... Operands>
void with_packs(const char* name, const Tensor& rows, const Run& run, const Operands&... operands) {
  if (rows.numel() == 0) {
    return;
  }
  const DeviceGuard guard(rows.device());
  with_type(rows.scalar_type(), name, [&]<typename T>(T tag) {
    with_bool(rows.size(1) % pack_width<T> == 0 && are_aligned(input<char>(operands)...),
              [&](auto is_vector) { run(tag, is_vector); });
  });
}

// The same for kernels with one block a row, whose threads divide its packs: calls run(T{}, is_vector,
// blocks, threads).
template <typename Run, typename... Operands>
void for_rows(const char* name, const Tensor& rows, int64_t most_threads, const Run& run,
              const Operands&... operands) {
  const auto run_rows = [&]<typename T>(T tag, auto is_vector) {
    run(tag, is_vector, grid_size(rows.size(0), name),
        threads_for(ceil_div(rows.size(1), pack_width<T>), most_threads));
  };
  with_packs(name, rows, run_rows, operands...);
}

// `blocks`, times as many as take one pack a thread of a row of `packs`.
inline dim3 grid_of_packs(int64_t blocks, int64_t packs, unsigned threads, const char* kernel) {
  const int64_t across = ceil_div(packs, threads);
  require(across <= 65535, kernel, "at most 65535 * 128 packs of 16 bytes in a row");
  return {grid_size(blocks, kernel), static_cast<unsigned>(across)};
}

}  // namespace pptrain::kernels::cuda

// Second stage of every two-stage column sum: no atomics, and an order that depends on the shape alone.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

namespace pptrain::kernels::cuda {

// out += the sum over partials' rows, in a fixed order. partials: float32 [count, dim]; out: float32 [dim].
void add_partial_sums(const at::Tensor& partials, const at::Tensor& out);

struct PartialSums {
  at::Tensor partials, out;
};

// The same for up to two, in one launch.
void add_partial_sums(std::span<const PartialSums> sums);

// Room for partial sums: float32 [count, dim], not initialised, on the device of `like`.
at::Tensor empty_partial_sums(const at::Tensor& like, int64_t count, int64_t dim);

}  // namespace pptrain::kernels::cuda

#pragma once

#include <compare>
#include <cstdint>

namespace pptrain::kernels {

// Of a GEMM: the result is [m, n], and each of its elements is a sum of k products.
struct GemmShape {
  int64_t m = 0, n = 0, k = 0;

  auto operator<=>(const GemmShape&) const = default;
};

}  // namespace pptrain::kernels

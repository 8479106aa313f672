// How tensor-parallel ranks share out parameters and rows.
#pragma once

#include <cstdint>

#include "core/nn/parameter.h"

namespace pptrain::nn {

// Rank `rank` of `size` that share out what each of them would hold whole. One rank holds everything.
struct TensorCut {
  int rank = 0;
  int size = 1;

  bool alone() const { return size == 1; }

  // Of `total` indices, rank r has [begin(total, r), begin(total, r + 1)): shares differ by one at most.
  int64_t begin(int64_t total, int r) const { return total * r / size; }
  int64_t count(int64_t total, int r) const { return begin(total, r + 1) - begin(total, r); }
  int64_t count(int64_t total) const { return count(total, rank); }

  // The parameter of which this rank has its share of dim `dim`.
  ParameterSpec cut(ParameterSpec spec, int dim) const;
  // The parameter that every rank holds whole, each with a part of its gradient; rank 0 counts it.
  ParameterSpec copied(ParameterSpec spec) const;

  friend bool operator==(const TensorCut&, const TensorCut&) = default;
};

}  // namespace pptrain::nn

#include "core/nn/tensor_cut.h"

#include <utility>

namespace pptrain::nn {

ParameterSpec TensorCut::cut(ParameterSpec spec, int dim) const {
  if (alone()) return spec;
  const int64_t total = spec.shape.at(static_cast<size_t>(dim));
  spec.cut = Cut{.dim = dim, .begin = begin(total, rank), .size = count(total)};
  return spec;
}

ParameterSpec TensorCut::copied(ParameterSpec spec) const {
  if (alone()) return spec;
  spec.copies = Copies::tp;
  spec.counted = rank == 0;
  return spec;
}

}  // namespace pptrain::nn

#include "core/optim/squared_norms.h"

#include <ATen/ops/zeros.h>

#include <vector>

#include "core/kernels/kernels.h"

namespace pptrain::optim {

kernels::ExactSum sum_of_squares(std::span<nn::Slice* const> slices) {
  if (slices.empty()) return {};
  at::Tensor words = at::zeros({kernels::exact_words}, slices.front()->grad.options().dtype(at::kLong));
  std::vector<kernels::BufferPart> parts;
  for (const nn::Slice* slice : slices) parts.push_back({slice->grad, slice->place});
  kernels::add_squares(parts, words);
  const at::Tensor host = words.cpu();
  return kernels::ExactSum(
      std::span<const int64_t, kernels::exact_words>(host.const_data_ptr<int64_t>(), kernels::exact_words));
}

}  // namespace pptrain::optim

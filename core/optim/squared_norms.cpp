#include "core/optim/squared_norms.h"

#include <ATen/ops/zeros.h>

#include "core/kernels/kernels.h"

namespace pptrain::optim {

kernels::ExactSum sum_of_squares(std::span<nn::Slice* const> slices) {
  if (slices.empty()) return {};
  at::Tensor words = at::zeros({kernels::exact_words}, slices.front()->grad.options().dtype(at::kLong));
  for (const nn::Slice* slice : slices) kernels::add_squares(slice->grad, slice->place, words);
  const at::Tensor host = words.cpu();
  return kernels::ExactSum(
      std::span<const int64_t, kernels::exact_words>(host.const_data_ptr<int64_t>(), kernels::exact_words));
}

}  // namespace pptrain::optim

#include "core/optim/squared_norms.h"

#include <ATen/ops/empty.h>

#include "core/kernels/kernels.h"

namespace pptrain::optim {

std::vector<double> squared_norms(std::span<nn::Slice* const> slices) {
  if (slices.empty()) return {};
  const at::Tensor sums =
      at::empty({static_cast<int64_t>(slices.size())}, slices.front()->grad.options().dtype(at::kDouble));
  for (size_t i = 0; i < slices.size(); ++i) {
    kernels::sum_of_squares(slices[i]->grad, sums.select(0, static_cast<int64_t>(i)));
  }
  const at::Tensor host = sums.cpu();
  const double* data = host.const_data_ptr<double>();
  return {data, data + slices.size()};
}

}  // namespace pptrain::optim

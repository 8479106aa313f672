#include "core/optim/grad_norm.h"

#include <ATen/ops/empty.h>

#include "core/kernels/kernels.h"

namespace pptrain::optim {

std::vector<double> squared_norms(const nn::ParameterStore& store) {
  const auto parameters = store.parameters();
  if (parameters.empty()) {
    return {};
  }
  const at::Tensor sums = at::empty({static_cast<int64_t>(parameters.size())},
                                    parameters.front().grad.options().dtype(at::kDouble));
  for (size_t i = 0; i < parameters.size(); ++i) {
    kernels::sum_of_squares(parameters[i].grad, sums.select(0, static_cast<int64_t>(i)));
  }
  const at::Tensor host = sums.cpu();
  const double* data = host.const_data_ptr<double>();
  return {data, data + parameters.size()};
}

}  // namespace pptrain::optim

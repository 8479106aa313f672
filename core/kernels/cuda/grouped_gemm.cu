#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "core/base/error.h"
#include "core/kernels/cuda/device.cuh"
#include "core/kernels/cuda/gemm.h"
#include "core/kernels/cuda/host.h"
#include "core/kernels/expert_kernels.h"

namespace pptrain::kernels::cuda {

void gather_rows(const Tensor& x, const Tensor& order, int64_t each, Tensor& out);  // experts.cu

namespace {

// Calls body(expert, first row, rows) for each expert; it may have no rows. The host must know the sizes of
// the products: it waits for the device, unless `ends` lies on the host.
template <typename Body>
void for_each_group(const Tensor& ends, int64_t rows, const Body& body) {
  const Tensor host_ends = ends.cpu();
  const int* const end = input<int>(host_ends);
  int64_t first = 0;
  for (int64_t e = 0; e < host_ends.size(0); ++e) {
    if (end[e] < first || end[e] > rows) {
      throw Error("grouped product: the experts' rows lie outside of the tensor");
    }
    body(e, first, end[e] - first);
    first = end[e];
  }
}

// The rows of an operand, side by side.
Tensor rows_of(const Tensor& x, const std::optional<Tensor>& order, int64_t each) {
  if (!order) {
    return x;
  }
  Tensor gathered = at::empty({order->size(0), x.size(1)}, x.options());
  gather_rows(x, *order, each, gathered);
  return gathered;
}

}  // namespace

void grouped_linear(const Tensor& x, const std::optional<Tensor>& order, int64_t each, const Tensor& ends,
                    const Tensor& weight, Tensor& out) {
  const DeviceGuard guard(x.device());
  const Tensor from = rows_of(x, order, each);
  for_each_group(ends, out.size(0), [&](int64_t e, int64_t first, int64_t rows) {
    Tensor part = out.narrow(0, first, rows);
    linear(from.narrow(0, first, rows), weight[e], std::nullopt, part);
  });
}

void grouped_matmul(const Tensor& dy, const std::optional<Tensor>& order, int64_t each, const Tensor& ends,
                    const Tensor& weight, Tensor& dx) {
  const DeviceGuard guard(dy.device());
  const Tensor from = rows_of(dy, order, each);
  for_each_group(ends, dx.size(0), [&](int64_t e, int64_t first, int64_t rows) {
    Tensor part = dx.narrow(0, first, rows);
    matmul(from.narrow(0, first, rows), weight[e], part);
  });
}

namespace {

using WeightGradient = void (*)(const Tensor& dy, const Tensor& x, Tensor& weight_grad);

void for_each_expert(WeightGradient weight_gradient, const Tensor& dy, const std::optional<Tensor>& dy_order,
                     const Tensor& x, const std::optional<Tensor>& x_order, int64_t each, const Tensor& ends,
                     Tensor& weight_grad) {
  const DeviceGuard guard(dy.device());
  const Tensor left = rows_of(dy, dy_order, each);
  const Tensor right = rows_of(x, x_order, each);
  for_each_group(ends, left.size(0), [&](int64_t e, int64_t first, int64_t rows) {
    Tensor part = weight_grad[e];
    weight_gradient(left.narrow(0, first, rows), right.narrow(0, first, rows), part);
  });
}

}  // namespace

void accumulate_grouped_weight_gradient(const Tensor& dy, const std::optional<Tensor>& dy_order,
                                        const Tensor& x, const std::optional<Tensor>& x_order, int64_t each,
                                        const Tensor& ends, Tensor& weight_grad) {
  for_each_expert(accumulate_weight_gradient, dy, dy_order, x, x_order, each, ends, weight_grad);
}

void grouped_weight_gradient(const Tensor& dy, const std::optional<Tensor>& dy_order, const Tensor& x,
                             const std::optional<Tensor>& x_order, int64_t each, const Tensor& ends,
                             Tensor& weight_grad) {
  for_each_expert(weight_gradient, dy, dy_order, x, x_order, each, ends, weight_grad);
}

void add_grouped_kernels() {
  kernels::grouped_linear.implement(BackEnd::cuda, grouped_linear);
  kernels::grouped_matmul.implement(BackEnd::cuda, grouped_matmul);
  kernels::accumulate_grouped_weight_gradient.implement(BackEnd::cuda, accumulate_grouped_weight_gradient);
  kernels::grouped_weight_gradient.implement(BackEnd::cuda, grouped_weight_gradient);
}

}  // namespace pptrain::kernels::cuda

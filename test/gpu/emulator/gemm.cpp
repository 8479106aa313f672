// GEMMs with float32 results, and with a scale for each row; LibTorch has these only for CUDA. Other GEMMs
// are LibTorch's own on the CPU.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>
#include <torch/library.h>

namespace {

using at::Tensor;

Tensor& mm(const Tensor& a, const Tensor& b, at::ScalarType, Tensor& out) {
  return out.copy_(at::mm(a.to(at::kDouble), b.to(at::kDouble)));
}

Tensor& addmm(const Tensor& added, const Tensor& a, const Tensor& b, at::ScalarType, const at::Scalar& beta,
              const at::Scalar& alpha, Tensor& out) {
  return out.copy_(at::addmm(added.to(at::kDouble), a.to(at::kDouble), b.to(at::kDouble), beta, alpha));
}

// With a scale for each row of a and each column of b.
Tensor& scaled_mm(const Tensor& a, const Tensor& b, const Tensor& a_scales, const Tensor& b_scales,
                  const std::optional<Tensor>& bias, const std::optional<Tensor>&,
                  std::optional<at::ScalarType>, bool, Tensor& out) {
  Tensor sums = at::mm(a.to(at::kDouble) * a_scales, b.to(at::kDouble) * b_scales);
  if (bias) {
    sums += *bias;
  }
  return out.copy_(sums);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, CPU, library) {
  library.impl("mm.dtype_out", mm);
  library.impl("addmm.dtype_out", addmm);
  library.impl("_scaled_mm.out", scaled_mm);
}

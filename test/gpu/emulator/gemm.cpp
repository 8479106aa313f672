// GEMMs with float32 results; LibTorch has these only for CUDA. Other GEMMs are LibTorch's own on the CPU.
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

}  // namespace

TORCH_LIBRARY_IMPL(aten, CPU, library) {
  library.impl("mm.dtype_out", mm);
  library.impl("addmm.dtype_out", addmm);
}

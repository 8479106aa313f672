// Stands in for cuDNN's attention where the program is built without CUDA or without cuDNN's frontend.
#include "core/base/error.h"
#include "core/kernels/cuda/cudnn_attention.h"

namespace pptrain::kernels::cuda {
namespace {

[[noreturn]] void fail() {
  throw Error("this pptrain was built without cuDNN's frontend");
}

}  // namespace

bool has_cudnn_attention() {
  return false;
}

std::string why_not_cudnn(const CudnnOperands&) {
  return "this pptrain was built without cuDNN's frontend";
}

at::Tensor cudnn_attention(const CudnnOperands&, at::Tensor&) {
  fail();
}

void cudnn_attention_backward(const CudnnOperands&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                              at::Tensor&, at::Tensor&, at::Tensor&) {
  fail();
}

}  // namespace pptrain::kernels::cuda

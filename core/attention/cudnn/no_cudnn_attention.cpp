// Replaces cuDNN's attention if the program is built without CUDA or without cuDNN's frontend.
#include "core/attention/cudnn/cudnn_attention.h"
#include "core/base/error.h"

namespace pptrain::attention {
namespace {

[[noreturn]] void fail() {
  throw Error("this pptrain was built without cuDNN's frontend");
}

}  // namespace

bool has_cudnn_attention() {
  return false;
}

std::string why_not_cudnn(const AttentionCall&) {
  return "this pptrain was built without cuDNN's frontend";
}

void cudnn_attention(Saved&) {
  fail();
}

void cudnn_attention_backward(const at::Tensor&, const Saved&, const Gradients&) {
  fail();
}

}  // namespace pptrain::attention

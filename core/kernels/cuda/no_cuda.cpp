// Stands in for the CUDA back end where the program is built without it.
#include "core/base/error.h"
#include "core/kernels/backend.h"

namespace pptrain::kernels::cuda {
namespace {

[[noreturn]] void refuse() {
  throw Error(
      "A tensor lies on a CUDA device, but this pptrain was built without CUDA. Put nvcc on PATH and build "
      "again, or "
      "set run.device = \"cpu\".");
}

}  // namespace

void rms_norm(const Tensor&, const Tensor&, double, Tensor&, Tensor&) {
  refuse();
}

void add_rms_norm(const Tensor&, const Tensor&, const Tensor&, double, Tensor&, Tensor&, Tensor&) {
  refuse();
}

void rms_norm_backward(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                       const std::optional<Tensor>&, Tensor&, Tensor&) {
  refuse();
}

void norm_rope(const Tensor&, const std::optional<Tensor>&, double, const RopeTable&, const Tensor&, Tensor&,
               Tensor&) {
  refuse();
}

void norm_rope_backward(const Tensor&, const Tensor&, const std::optional<Tensor>&, const Tensor&,
                        const RopeTable&, const Tensor&, Tensor&, const std::optional<Tensor>&) {
  refuse();
}

void swiglu(const Tensor&, Tensor&) {
  refuse();
}

void swiglu_backward(const Tensor&, const Tensor&, Tensor&) {
  refuse();
}

void cross_entropy(Tensor&, const Tensor&, Tensor&, bool) {
  refuse();
}

void embedding(const Tensor&, const Tensor&, Tensor&) {
  refuse();
}

void embedding_backward(const Tensor&, const Tensor&, Tensor&) {
  refuse();
}

void accumulate_weight_gradient(const Tensor&, const Tensor&, Tensor&) {
  refuse();
}

void accumulate_bias_gradient(const Tensor&, Tensor&) {
  refuse();
}

void adamw(Tensor&, const Tensor&, Tensor&, Tensor&, const std::optional<Tensor>&, const AdamWArgs&,
           const std::optional<AdamWPrevious>&) {
  refuse();
}

void sum_of_squares(const Tensor&, Tensor) {
  refuse();
}

}  // namespace pptrain::kernels::cuda

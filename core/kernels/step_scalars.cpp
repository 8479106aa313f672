#include "core/kernels/step_scalars.h"

#include <cmath>

#include "core/kernels/kernels.h"

namespace pptrain::kernels {

StepScalars lion_scalars(const StepArgs& args) {
  return {.grad_scale = static_cast<float>(args.grad_scale),
          .decay = static_cast<float>(1.0 - args.lr * args.weight_decay),
          .beta2 = static_cast<float>(args.beta2),
          .one_minus_beta1 = static_cast<float>(1.0 - args.beta1),
          .one_minus_beta2 = static_cast<float>(1.0 - args.beta2),
          .step_size = static_cast<float>(args.lr),
          .correction2 = 1,
          .eps = static_cast<float>(args.eps)};
}

StepScalars adamw_scalars(const StepArgs& args) {
  const auto step = static_cast<double>(args.step);
  StepScalars scalars = lion_scalars(args);
  scalars.step_size = static_cast<float>(args.lr / (1.0 - std::pow(args.beta1, step)));
  scalars.correction2 = static_cast<float>(std::sqrt(1.0 - std::pow(args.beta2, step)));
  return scalars;
}

}  // namespace pptrain::kernels

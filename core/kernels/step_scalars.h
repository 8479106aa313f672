// Scalars of a step of AdamW or Lion, as the loops of every back end take them.
#pragma once

namespace pptrain::kernels {

struct StepArgs;  // kernels.h

struct StepScalars {
  float grad_scale;
  float decay;  // 1 - lr * weight_decay
  float beta2;
  float one_minus_beta1;
  float one_minus_beta2;
  float step_size;    // lr; of AdamW, lr / (1 - beta1^step)
  float correction2;  // sqrt(1 - beta2^step), of AdamW
  float eps;
};

// Each derived once, in double, as torch.optim.AdamW does.
StepScalars adamw_scalars(const StepArgs& args);
StepScalars lion_scalars(const StepArgs& args);

}  // namespace pptrain::kernels

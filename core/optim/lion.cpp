#include "core/optim/lion.h"

#include <spdlog/fmt/fmt.h>

#include <optional>

#include "core/base/error.h"
#include "core/kernels/optimizers.h"

namespace pptrain::optim {

Lion::Lion(const config::OptimizerSection& options) {
  if (options.betas.size() != 2)
    throw Error(fmt::format("lion needs two betas, not {}", options.betas.size()));
  beta1_ = options.betas[0];
  beta2_ = options.betas[1];
}

void Lion::step(std::span<Run> runs, const StepArguments& arguments) {
  for (Run& run : runs) {
    std::optional<kernels::LionPrevious> previous;
    if (run.previous) previous = {run.previous->master, run.previous->state[0]};
    kernels::lion(run.now.master, run.grad, run.now.state[0], run.compute,
                  {.lr = arguments.lr * run.lr_scale,
                   .beta1 = beta1_,
                   .beta2 = beta2_,
                   .weight_decay = run.weight_decay,
                   .grad_scale = arguments.grad_scale},
                  previous);
  }
}

}  // namespace pptrain::optim

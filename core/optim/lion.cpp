#include "core/optim/lion.h"

#include <spdlog/fmt/fmt.h>

#include <optional>
#include <vector>

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
  std::vector<kernels::LionPart> parts;
  for (const Run& run : runs) {
    std::optional<kernels::LionPrevious> previous;
    if (run.previous) previous = {run.previous->master, run.previous->state[0]};
    parts.push_back({.weight = run.now.master,
                     .grad = run.grad,
                     .exp_avg = run.now.state[0],
                     .compute = run.compute,
                     .args = {.lr = arguments.lr * run.lr_scale,
                              .beta1 = beta1_,
                              .beta2 = beta2_,
                              .weight_decay = run.weight_decay,
                              .grad_scale = arguments.grad_scale},
                     .previous = previous});
  }
  if (!parts.empty()) kernels::lion(parts);
}

}  // namespace pptrain::optim

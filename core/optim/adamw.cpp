#include "core/optim/adamw.h"

#include <spdlog/fmt/fmt.h>

#include <optional>
#include <vector>

#include "core/base/error.h"
#include "core/kernels/kernels.h"

namespace pptrain::optim {

AdamW::AdamW(const config::OptimizerSection& options) : eps_(options.eps) {
  if (options.betas.size() != 2)
    throw Error(fmt::format("adamw needs two betas, not {}", options.betas.size()));
  beta1_ = options.betas[0];
  beta2_ = options.betas[1];
}

std::vector<std::string> AdamW::state_files() const {
  return {"adamw.exp_avg", "adamw.exp_avg_sq"};
}

void AdamW::step(std::span<Run> runs, const StepArguments& arguments) {
  std::vector<kernels::AdamWPart> parts;
  for (const Run& run : runs) {
    std::optional<kernels::AdamWPrevious> previous;
    if (run.previous) previous = {run.previous->master, run.previous->state[0], run.previous->state[1]};
    parts.push_back({.weight = run.now.master,
                     .grad = run.grad,
                     .exp_avg = run.now.state[0],
                     .exp_avg_sq = run.now.state[1],
                     .compute = run.compute,
                     .args = {.lr = arguments.lr * run.lr_scale,
                              .beta1 = beta1_,
                              .beta2 = beta2_,
                              .eps = eps_,
                              .weight_decay = run.weight_decay,
                              .grad_scale = arguments.grad_scale,
                              .step = arguments.step},
                     .previous = previous});
  }
  if (!parts.empty()) kernels::adamw(parts);
}

}  // namespace pptrain::optim

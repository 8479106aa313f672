#include "core/optim/updates.h"

#include <ATen/ops/sign.h>
#include <spdlog/fmt/fmt.h>

#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/kernels/kernels.h"

namespace pptrain::optim {
namespace {

using StepKernel = kernels::Kernel<void(const std::vector<kernels::StepPart>&)>;

// AdamW or Lion: the kernel, and what it keeps of each parameter.
class MomentUpdate final : public Update {
 public:
  MomentUpdate(const StepKernel& kernel, std::vector<std::string> state_files,
               const config::OptimizerSection& options)
      : kernel_(kernel), state_files_(std::move(state_files)), eps_(options.eps) {
    if (options.betas.size() != 2)
      throw Error(fmt::format("{} needs two betas, not {}", options.name, options.betas.size()));
    beta1_ = options.betas[0];
    beta2_ = options.betas[1];
  }

  std::vector<std::string> state_files() const override { return state_files_; }
  bool keeps_previous() const override { return true; }

  void step(std::span<Run> runs, double lr, double grad_scale, int64_t step) override {
    const auto squares = [](const Buffers& of) { return of.state.size() > 1 ? of.state[1] : at::Tensor(); };
    std::vector<kernels::StepPart> parts;
    for (const Run& run : runs) {
      std::optional<kernels::StepPrevious> previous;
      if (run.previous) previous = {run.previous->master, run.previous->state[0], squares(*run.previous)};
      parts.push_back({.weight = run.now.master,
                       .grad = run.grad,
                       .exp_avg = run.now.state[0],
                       .exp_avg_sq = squares(run.now),
                       .compute = run.compute,
                       .args = {.lr = lr * run.lr_scale,
                                .beta1 = beta1_,
                                .beta2 = beta2_,
                                .eps = eps_,
                                .weight_decay = run.weight_decay,
                                .grad_scale = grad_scale,
                                .step = step},
                       .previous = previous});
    }
    if (!parts.empty()) kernel_(parts);
  }

 private:
  const StepKernel& kernel_;
  std::vector<std::string> state_files_;
  double beta1_ = 0, beta2_ = 0, eps_;
};

class Balance final : public Update {
 public:
  explicit Balance(double rate) : rate_(rate) {}

  std::vector<std::string> state_files() const override { return {}; }

  // A handful of values: ATen's operators, each of which rounds once, wherever an element lies.
  void step(std::span<Run> runs, double /*lr*/, double /*grad_scale*/, int64_t /*step*/) override {
    for (Run& run : runs) {
      run.now.master.sub_(at::sign(run.grad).mul_(rate_));
      if (run.compute) run.compute->copy_(run.now.master);
    }
  }

 private:
  double rate_;
};

}  // namespace

std::unique_ptr<Update> make_adamw(const config::OptimizerSection& options) {
  return std::make_unique<MomentUpdate>(
      kernels::adamw, std::vector<std::string>{"adamw.exp_avg", "adamw.exp_avg_sq"}, options);
}

std::unique_ptr<Update> make_lion(const config::OptimizerSection& options) {
  return std::make_unique<MomentUpdate>(kernels::lion, std::vector<std::string>{"lion.exp_avg"}, options);
}

std::unique_ptr<Update> make_balance(double rate) {
  return std::make_unique<Balance>(rate);
}

}  // namespace pptrain::optim

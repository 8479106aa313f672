#include "core/optim/updates.h"

#include <ATen/ops/sign.h>
#include <spdlog/fmt/fmt.h>

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "core/kernels/kernels.h"

namespace pptrain::optim {
namespace {

void require_two_betas(std::string_view name, const config::OptimizerSection& options) {
  if (options.betas.size() != 2)
    throw Error(fmt::format("{} needs two betas, not {}", name, options.betas.size()));
}

class AdamW final : public Update {
 public:
  explicit AdamW(const config::OptimizerSection& options)
      : beta1_(options.betas[0]), beta2_(options.betas[1]), eps_(options.eps) {}

  std::vector<std::string> state_files() const override { return {"adamw.exp_avg", "adamw.exp_avg_sq"}; }
  bool keeps_previous() const override { return true; }

  void step(std::span<Run> runs, const StepArguments& arguments) override {
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

 private:
  double beta1_, beta2_, eps_;
};

class Lion final : public Update {
 public:
  explicit Lion(const config::OptimizerSection& options)
      : beta1_(options.betas[0]), beta2_(options.betas[1]) {}

  std::vector<std::string> state_files() const override { return {"lion.exp_avg"}; }
  bool keeps_previous() const override { return true; }

  void step(std::span<Run> runs, const StepArguments& arguments) override {
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

 private:
  double beta1_, beta2_;
};

class Balance final : public Update {
 public:
  explicit Balance(double rate) : rate_(rate) {}

  std::vector<std::string> state_files() const override { return {}; }

  // A handful of values: ATen's operators, each of which rounds once, wherever an element lies.
  void step(std::span<Run> runs, const StepArguments& /*arguments*/) override {
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
  require_two_betas("adamw", options);
  return std::make_unique<AdamW>(options);
}

std::unique_ptr<Update> make_lion(const config::OptimizerSection& options) {
  require_two_betas("lion", options);
  return std::make_unique<Lion>(options);
}

std::unique_ptr<Update> make_balance(double rate) {
  return std::make_unique<Balance>(rate);
}

}  // namespace pptrain::optim

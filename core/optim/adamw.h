// AdamW (Loshchilov & Hutter, arXiv 1711.05101).
#pragma once

#include "core/config/job_config.h"
#include "core/optim/footprint.h"
#include "core/optim/update.h"

namespace pptrain::optim {

// State files "adamw.exp_avg" and "adamw.exp_avg_sq".
class AdamW final : public Update {
 public:
  // Takes betas and eps from `options`. Throws Error unless there are two betas.
  explicit AdamW(const config::OptimizerSection& options);

  // A step moves 34 bytes a parameter: master and two moments read and written (24), the gradient read, and
  // zeroed before the next step (8), the compute weight written (2).
  static constexpr OptimizerFootprint footprint{.state = 8, .previous = 12, .moved = 34, .kept = 12};

  std::vector<std::string> state_files() const override;
  void step(std::span<Run> runs, const StepArguments& arguments) override;
  bool keeps_previous() const override { return true; }

 private:
  double beta1_, beta2_, eps_;
};

}  // namespace pptrain::optim

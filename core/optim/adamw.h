// AdamW (Loshchilov & Hutter, arXiv 1711.05101).
#pragma once

#include <vector>

#include "core/optim/optimizer.h"

namespace pptrain::optim {

// Decays all but norms and biases. State files "adamw.exp_avg" and "adamw.exp_avg_sq".
class AdamW final : public Optimizer {
 public:
  // Takes betas, eps and weight_decay from `options`. Throws Error unless there are two betas.
  AdamW(std::vector<nn::Shard*> shards, const config::OptimizerSection& options);

  // A step moves 34 bytes a parameter: master and two moments read and written (24), the gradient read, and
  // zeroed before the next step (8), the compute weight written (2).
  static constexpr OptimizerFootprint footprint{.state = 8, .previous = 12, .moved = 34, .kept = 12};

 protected:
  void update(Run& run, const StepArguments& arguments) override;
  bool keeps_previous_itself() const override { return true; }

 private:
  double beta1_, beta2_, eps_;
};

}  // namespace pptrain::optim

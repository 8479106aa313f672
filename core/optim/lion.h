// Lion (Chen et al., arXiv 2302.06675): half of AdamW's state. The authors give it 3 to 10 times less
// learning rate and as much more weight decay than AdamW, and betas 0.9 and 0.99 (0.95 and 0.98 where
// training is unstable).
#pragma once

#include "core/config/job_config.h"
#include "core/optim/footprint.h"
#include "core/optim/update.h"

namespace pptrain::optim {

// State file "lion.exp_avg".
class Lion final : public Update {
 public:
  // Takes betas from `options`. Throws Error unless there are two.
  explicit Lion(const config::OptimizerSection& options);

  // Master and average read and written (16), the gradient read and zeroed (8), the compute weight written.
  static constexpr OptimizerFootprint footprint{.state = 4, .previous = 8, .moved = 26, .kept = 8};

  std::vector<std::string> state_files() const override { return {"lion.exp_avg"}; }
  void step(std::span<Run> runs, const StepArguments& arguments) override;
  bool keeps_previous() const override { return true; }

 private:
  double beta1_, beta2_;
};

}  // namespace pptrain::optim

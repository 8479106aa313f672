// The biases that balance experts without a loss (Wang et al., arXiv 2408.15664): each moves by a fixed rate
// against the sign of its "gradient", which is its expert's load less the mean load, times the experts.
// Neither learning rate nor decay nor gradient scale act on it, and it has no state.
#pragma once

#include "core/optim/update.h"

namespace pptrain::optim {

class Balance final : public Update {
 public:
  explicit Balance(double rate) : rate_(rate) {}

  std::vector<std::string> state_files() const override { return {}; }
  void step(std::span<Run> runs, const StepArguments& arguments) override;

 private:
  double rate_;
};

}  // namespace pptrain::optim

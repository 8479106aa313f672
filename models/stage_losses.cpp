#include "models/stage_losses.h"

namespace pptrain::models {

double StageLosses::take() {
  const double loss = sum_.defined() ? sum_.item<double>() : 0;
  sum_.reset();
  return loss;
}

std::vector<double> StageLosses::of_microbatches(int64_t count) const {
  std::vector<double> losses(static_cast<size_t>(count));
  for (size_t i = 0; i < losses.size(); ++i) losses[i] = microbatches_.at(static_cast<int>(i)).item<double>();
  return losses;
}

}  // namespace pptrain::models

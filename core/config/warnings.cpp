#include "core/config/warnings.h"

#include <spdlog/fmt/fmt.h>

namespace pptrain::config {

std::vector<std::string> warnings(const JobConfig& job) {
  std::vector<std::string> result;
  const int64_t warmup = job.lr_schedule.warmup_steps, steps = job.train.steps;
  if (warmup > steps) {
    result.push_back(fmt::format(
        "lr_schedule.warmup_steps = {} is more than train.steps = {}: the learning rate rises to {:.1f} % of "
        "optimizer.lr, and there the run ends",
        warmup, steps, 100.0 * static_cast<double>(steps) / static_cast<double>(warmup)));
  }
  return result;
}

}  // namespace pptrain::config

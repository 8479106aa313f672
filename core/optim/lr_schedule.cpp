#include "core/optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace pptrain::optim {
namespace {

// The last step at the peak.
int64_t decay_start(const config::LrScheduleSection& schedule, int64_t warmup, int64_t total_steps) {
  const int64_t warm = std::max<int64_t>(warmup - 1, 0);
  if (schedule.name != "wsd") return warm;
  const double decay_steps = schedule.decay_fraction * static_cast<double>(total_steps);
  const int64_t least = decay_steps > 0 ? 1 : 0;  // the last step is at the lowest rate in any case
  return std::max(warm, total_steps - 1 - std::max<int64_t>(least, std::llround(decay_steps)));
}

}  // namespace

double learning_rate(double peak, const config::LrScheduleSection& schedule, int64_t total_steps,
                     int64_t step) {
  const int64_t warmup = schedule.warmup_steps.value_or(0), last = total_steps - 1;
  step = std::min(step, std::max<int64_t>(last, 0));
  if (step < warmup) return peak * static_cast<double>(step + 1) / static_cast<double>(warmup);
  const int64_t start = decay_start(schedule, warmup, total_steps);
  if (schedule.name == "constant" || step <= start) return peak;
  const double progress = static_cast<double>(step - start) / static_cast<double>(last - start);
  const double remaining =
      schedule.name == "cosine" ? (1 + std::cos(std::numbers::pi * progress)) / 2 : 1 - progress;
  return peak * (schedule.min_lr_ratio + (1 - schedule.min_lr_ratio) * remaining);
}

}  // namespace pptrain::optim

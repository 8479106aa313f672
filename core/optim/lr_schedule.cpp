#include "core/optim/lr_schedule.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/base/error.h"

namespace pptrain::optim {

LrSchedule::Shape LrSchedule::shape_of(const config::LrScheduleSection& options) {
  if (options.name == "constant") return Shape::constant;
  if (options.name == "linear") return Shape::linear;
  if (options.name == "cosine") return Shape::cosine;
  if (options.name == "wsd") return Shape::wsd;
  throw UsageError(
      fmt::format("lr_schedule.name: '{}' is not one of constant, linear, cosine, wsd", options.name));
}

LrSchedule::LrSchedule(double lr, const config::LrScheduleSection& options, int64_t total_steps)
    : shape_(shape_of(options)),
      lr_(lr),
      min_ratio_(options.min_lr_ratio),
      warmup_(options.warmup_steps.value_or(0)),
      last_(total_steps - 1) {
  if (warmup_ < 0 || total_steps < 0) {
    throw UsageError(fmt::format(
        "lr_schedule: {} warm-up steps in a run of {} steps: neither may be negative", warmup_, total_steps));
  }
  decay_start_ = std::max<int64_t>(warmup_ - 1, 0);
  if (shape_ == Shape::wsd) {
    const double decay_steps = options.decay_fraction * static_cast<double>(total_steps);
    const int64_t least = decay_steps > 0 ? 1 : 0;  // the last step is at the lowest rate in any case
    decay_start_ = std::max(decay_start_, last_ - std::max<int64_t>(least, std::llround(decay_steps)));
  }
}

double LrSchedule::at(int64_t step) const {
  step = std::min(step, std::max<int64_t>(last_, 0));
  if (step < warmup_) {
    return lr_ * static_cast<double>(step + 1) / static_cast<double>(warmup_);
  }
  if (shape_ == Shape::constant || step <= decay_start_) {
    return lr_;
  }
  const double progress =
      static_cast<double>(step - decay_start_) / static_cast<double>(last_ - decay_start_);
  const double remaining =
      shape_ == Shape::cosine ? (1 + std::cos(std::numbers::pi * progress)) / 2 : 1 - progress;
  return lr_ * (min_ratio_ + (1 - min_ratio_) * remaining);
}

}  // namespace pptrain::optim

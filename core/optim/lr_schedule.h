// The learning rate over a run.
#pragma once

#include <cstdint>

#include "core/config/job_config.h"

namespace pptrain::optim {

// Linear warm-up from 0, reaching the peak at step warmup_steps - 1; then, until the last step, which is at
// min_lr_ratio * lr (constant excepted):
//   constant  the peak
//   linear    a straight line
//   cosine    half a period (Loshchilov & Hutter, arXiv 1608.03983)
//   wsd       the peak, then a straight line over the last decay_fraction of the run, one step at least
//             (warm-up, stable, decay: Hu et al., arXiv 2404.06395)
// A function of the step alone: it has no state to save.
class LrSchedule {
 public:
  // A warm-up longer than the run is never completed. Throws UsageError for an unknown name or a negative
  // number of steps.
  LrSchedule(double lr, const config::LrScheduleSection& options, int64_t total_steps);

  double at(int64_t step) const;  // step counts from 0; beyond the last step, the last step's rate

 private:
  enum class Shape { constant, linear, cosine, wsd };
  static Shape shape_of(const config::LrScheduleSection& options);

  Shape shape_;
  double lr_;
  double min_ratio_;
  int64_t warmup_;
  int64_t decay_start_;  // the last step at the peak
  int64_t last_;
};

}  // namespace pptrain::optim

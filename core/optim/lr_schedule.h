// The learning rate over a run.
#pragma once

#include <cstdint>

#include "core/config/job_config.h"

namespace pptrain::optim {

// The rate of a step, counted from 0; beyond the last step, the last step's. Linear warm-up from 0 reaches
// `peak` at step warmup_steps - 1. Then the rate changes until the last step, which is at min_lr_ratio * peak
// (except constant):
//
//   constant  the peak
//   linear    a straight line
//   cosine    half a period (Loshchilov & Hutter, arXiv 1608.03983)
//   wsd       the peak, then a straight line over the last decay_fraction of the run, one step at least
//             (warm-up, stable, decay: Hu et al., arXiv 2404.06395)
// A warm-up longer than the run is never completed.
double learning_rate(double peak, const config::LrScheduleSection& schedule, int64_t total_steps,
                     int64_t step);

}  // namespace pptrain::optim

// What a step or an evaluation tells the world.
#pragma once

#include <cstdint>

namespace pptrain::metrics {

struct StepRecord {
  int64_t step = 0;      // 1 is the first
  double loss = 0;       // nats per valid token, over the global batch
  double grad_norm = 0;  // before clipping, over all stages
  double lr = 0;
  int64_t tokens = 0;  // valid tokens of this step, all ranks
  double tokens_per_s = 0;
  double step_time_s = 0;
  double mfu = 0;        // 0..1, see models/flops.h
  double memory_gb = 0;  // peak so far: resident memory of this process, or allocated on its GPU
  bool skipped = false;  // non-finite loss or norm: the weights did not move
};

struct EvalRecord {
  int64_t step = 0;
  double loss = 0;  // nats per valid token
  int64_t tokens = 0;
  double time_s = 0;
};

}  // namespace pptrain::metrics

// From a job to its pipeline: which layers on which stage, and the proven action lists.
#pragma once

#include <utility>
#include <vector>

#include "core/config/job_config.h"
#include "parallel/schedule/schedule.h"

namespace pptrain::app {

// [start, end) of each stage, as distributed.pp_split says. Throws UsageError.
std::vector<std::pair<int, int>> stage_layers(const config::JobConfig& job, int64_t layers);

// The job's training schedule as its generator lists it, compute alone, or as its file has it. Throws
// UsageError.
schedule::Schedule training_compute(const config::JobConfig& job);

// The same, lowered and validated. Throws UsageError.
schedule::Schedule training_schedule(const config::JobConfig& job);

}  // namespace pptrain::app

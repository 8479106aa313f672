// What a job says of its pipeline: its schedule and its split.
#pragma once

#include <optional>

#include "core/config/job_config.h"
#include "core/config/loader.h"
#include "parallel/pipeline/split_layers.h"
#include "parallel/schedule/schedule.h"

namespace pptrain::app {

struct GivenPipeline {
  std::optional<schedule::Schedule> compute{};        // its compute actions; none with auto and search
  std::optional<pipeline::LayerAssignment> layers{};  // none with auto, search or cost
};

// Checks schedule, stages per rank, split and recompute, and fills the job in with plain names and with the
// schedule's stages per rank. Reports faults at the keys to change. `sound`: none was reported before.
GivenPipeline check_pipeline(config::JobConfig& job, const config::ReportConflict& report, bool sound);

// The same for a job whose schedule, stages per rank and microbatches the search chooses: its schedule must
// be a valid name, but need not exist for the job's microbatches.
void check_pipeline_for_search(config::JobConfig& job, const config::ReportConflict& report);

}  // namespace pptrain::app

// Whether a job can have the samples that it asks for.
#pragma once

#include "core/config/job_config.h"
#include "core/config/loader.h"
#include "models/model_config.h"

namespace pptrain::app {

// Reports eval.generate_* that the job's data or model cannot serve: nothing where there are no samples.
void check_samples(const config::JobConfig& job, const models::ModelConfig& model,
                   const config::ReportConflict& report);

}  // namespace pptrain::app

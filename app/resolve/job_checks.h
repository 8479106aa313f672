// What a job must fulfil beside its pipeline's schedule and split; what is wrong is reported at the keys to
// change.
#pragma once

#include <optional>

#include "core/config/job_config.h"
#include "core/config/loader.h"
#include "models/model_config.h"

namespace pptrain::app {

// Of optimizer.groups and lora.targets, patterns that match nothing in `model`; weights of one GEMM of which
// some are frozen and others are not.
void report_learning(const config::JobConfig& job, const models::ModelConfig& model,
                     const config::ReportConflict& report);

// Heads that no library of a GPU computes, where the job is for GPUs.
void report_heads(const config::JobConfig& job, const models::ModelConfig& model,
                  const config::ReportConflict& report);

// train.recompute: its words, and their number where the number of stages is known.
void report_recompute(const config::JobConfig& job, std::optional<int> stages,
                      const config::ReportConflict& report);

// --- Whether a job can have the samples that it asks for.

// Reports eval.generate_* that the job's data or model cannot serve: nothing where there are no samples.
void check_samples(const config::JobConfig& job, const models::ModelConfig& model,
                   const config::ReportConflict& report);

}  // namespace pptrain::app

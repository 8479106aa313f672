// Checks of a job other than its pipeline's schedule and split. Faults are reported at the keys to change.
#pragma once

#include <optional>

#include "app/plan/plan.h"
#include "core/config/job_config.h"
#include "core/config/loader.h"
#include "models/model_config.h"

namespace pptrain::app {

// Reports patterns of optimizer.groups and lora.targets that match nothing in `model`, and weights of one
// GEMM of which only some are frozen.
void report_learning(const config::JobConfig& job, const models::ModelConfig& model,
                     const config::ReportConflict& report);

// Reports heads that no GPU library computes, if the job is for GPUs.
void report_heads(const config::JobConfig& job, const models::ModelConfig& model,
                  const config::ReportConflict& report);

// Reports widths that GEMMs in FP8 cannot have, if the job wants them.
void report_fp8(const config::JobConfig& job, const models::ModelConfig& model,
                const config::ReportConflict& report);

// Reports more NCCL communicators than a GPU has multiprocessors for, if the job is for GPUs.
void report_gpu_blocks(const PlanBase& plan, const config::ReportConflict& report);

// train.recompute: its words, and their number if the number of stages is known.
void report_recompute(const config::JobConfig& job, std::optional<int> stages,
                      const config::ReportConflict& report);

// --- Can a job have the samples that it asks for?

// Reports eval.generate_* that the job's data or model cannot serve; nothing if there are no samples.
void check_samples(const config::JobConfig& job, const models::ModelConfig& model,
                   const config::ReportConflict& report);

}  // namespace pptrain::app

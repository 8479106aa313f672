// Checks of a job other than its pipeline's schedule and split. Faults are reported at the keys to change.
#pragma once

#include "app/plan/plan.h"
#include "core/config/loader.h"

namespace pptrain::app {

// Reports, of a job whose values are valid one by one:
// - patterns of optimizer.groups and lora.targets that match nothing in the model, and weights of one GEMM of
//   which only some are frozen;
// - heads that no GPU library computes, if the job is for GPUs;
// - widths that GEMMs in FP8 cannot have, if the job wants them;
// - samples (eval.generate_*) that the job's data or model cannot serve, if it wants them.
void check_job(const PlanBase& base, const config::ReportConflict& report);

// Reports a path that is no UTF-8 text, of a job that saves: a checkpoint and a trace name it in JSON.
void report_bad_paths(const config::JobConfig& job, const config::ReportConflict& report);

// Reports more NCCL communicators than a GPU has multiprocessors for, if the job is for GPUs.
void report_gpu_blocks(const PlanBase& plan, const config::ReportConflict& report);

}  // namespace pptrain::app

// What a job's passes cost in time.
#pragma once

#include <string>

#include "app/forecast/cost_model.h"
#include "core/config/job_config.h"
#include "parallel/pipeline/split_layers.h"
#include "parallel/schedule/cost/simulate.h"
#include "parallel/schedule/schedule.h"

namespace pptrain::app {

// `costs` is a device's name, or the trace of a run of the same model (profile.trace). Empty: the device that
// the job runs on (run.device; for cuda, h100). Throws UsageError, also for a GPU that cannot run the model.
CostSource make_cost_source(const PlanBase& base, const std::string& costs);

// `source` where `world` CPU ranks of so many threads each share cores, which its description then says.
// Costs of a GPU and of a trace, which was measured beside the other ranks, stay as they are.
CostSource on_cores(CostSource source, int world, int64_t threads, const CoreSharing& sharing);

// FLOP/s of one rank that a job's MFU is a fraction of: metrics.peak_tflops, else the data sheet's dense bf16
// rate of the GPU, or what the CPU's products reach on run.threads; 0 where it is not known.
double peak_flops(const config::JobConfig& job, const CostSource& source);

// The job's MFU on so many ranks; 0 where the peak is not known.
double predicted_mfu(const PlanBase& base, const CostSource& source, int world, double tokens_per_s);

// Why no GPU computes the model's attention in train.dtype, and what is allowed; "" where one does.
std::string why_no_attention(const config::JobConfig& job, const models::ModelConfig& model);

// The device that run.device means where nothing names one.
const DeviceModel& default_device(const config::JobConfig& job);

// Costs of each stage, transfers and exchanges included, for schedule::simulate; seconds. `schedule` says
// where stages are, no more.
schedule::Costs simulation_costs(const CostModel& model, const pipeline::LayerAssignment& layers,
                                 const schedule::Schedule& schedule);

// --- Costs of a job's passes as the CPU of this machine takes for them now (machine_costs.cpp).

// Runs passes of one block of each kind and of the head, and steps of the optimizer, at the job's sizes and
// with run.threads threads, and scales the model of a CPU to them: as many ranks at once as the job has and
// this machine has cores for, since they share its memory. Long microbatches and rows are cut. Takes a second
// or two; a model of which a block and the head have no room or take longer is left as modelled, and the
// description says so. Throws UsageError unless run.device is "cpu".
CostSource measure_machine(const PlanBase& base);

}  // namespace pptrain::app

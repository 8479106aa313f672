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
// the job runs on (run.device; for cuda, h100). Throws UsageError, also if the GPU cannot run the model.
CostSource make_cost_source(const PlanBase& base, const std::string& costs);

// `source` for `world` CPU ranks of so many threads each that share cores; the description then says so.
// Costs of a GPU stay as they are; so do a trace's, which was measured while the other ranks ran.
CostSource on_cores(CostSource source, int world, int64_t threads, const CoreSharing& sharing);

// FLOP/s of one rank of which a job's MFU is a fraction: metrics.peak_tflops, else the data sheet's dense
// bf16 rate of the GPU, or what the CPU's GEMMs reach on run.threads; 0 if it is not known.
double peak_flops(const config::JobConfig& job, const CostSource& source);

// The job's MFU on so many ranks; 0 if the peak is not known.
double predicted_mfu(const PlanBase& base, const CostSource& source, int world, double tokens_per_s);

// Why no GPU computes the model's attention in train.dtype, and what is allowed; "" if one does.
std::string why_no_attention(const config::JobConfig& job, const models::ModelConfig& model);

// The device that run.device means if nothing names one.
const DeviceModel& default_device(const config::JobConfig& job);

// Costs of each stage, transfers and exchanges included, for schedule::simulate; seconds. `schedule` gives
// only the placement of stages.
schedule::Costs simulation_costs(const CostModel& model, const pipeline::LayerAssignment& layers,
                                 const schedule::Schedule& schedule);

// Spreads the head over all ranks (schedule::spread_head), if the job wants it and the schedule has not done
// so.
schedule::Schedule with_head(const CostModel& costs, schedule::Schedule compute,
                             const pipeline::LayerAssignment& layers);

// --- Costs of a job's passes as this machine's CPU takes them now (machine_costs.cpp).

// Times passes of one block of each kind and of the head, and steps of the optimizer, at the job's sizes and
// with run.threads threads, and scales the model of a CPU to them. As many ranks run at once as the job has
// and this machine has cores for, since they share its memory. Long microbatches and rows are cut. Takes a
// second or two. A model whose block and head are too large or too slow is left as modelled, and the
// description says so. Throws UsageError unless run.device is "cpu".
CostSource measure_machine(const PlanBase& base);

}  // namespace pptrain::app

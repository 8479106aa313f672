// What a step of a job will take, in time and in bytes, before it runs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/config/job_config.h"
#include "models/cost_model.h"
#include "parallel/pipeline/split_layers.h"
#include "parallel/schedule/cost/simulate.h"

namespace pptrain::app {

// Where costs come from: a device, by itself or scaled to what a run measured.
struct CostSource {
  models::DeviceModel device;
  models::Calibration calibration{};
  std::string description;  // "modelled h100", "measured in runs/a/trace.json"
};

// `costs` is a device's name, or the trace of a run of the same model (profile.trace). Empty: the device that
// the job runs on (run.device; for cuda, h100). Throws UsageError.
CostSource make_cost_source(const config::JobConfig& job, const std::string& costs);

models::CostModel make_cost_model(const config::JobConfig& job, const CostSource& source);

models::Workload workload_of(const config::JobConfig& job);

// The device that run.device means where nothing names one.
const models::DeviceModel& default_device(const config::JobConfig& job);

// Costs of each stage, transfers included, for schedule::simulate; seconds.
schedule::Costs simulation_costs(const models::CostModel& model, const pipeline::LayerAssignment& layers);

struct RankBytes {
  int64_t weights = 0;      // fp32 masters and compute copies
  int64_t gradients = 0;    // fp32
  int64_t optimizer = 0;    // moments, and what post-validation keeps
  int64_t activations = 0;  // at the worst moment: records, operands of W, and the workspace of the action
  int64_t buffers = 0;      // messages on their way in and out
  int64_t total() const { return weights + gradients + optimizer + activations + buffers; }
};

struct Prediction {
  pipeline::LayerAssignment layers;
  schedule::Schedule lowered;
  schedule::Schedule compute;     // its compute actions alone
  schedule::Costs costs;          // s
  schedule::Simulation pipeline;  // of the lowered list
  double step_time = 0;           // s
  double tokens_per_s = 0;        // of all replicas
  std::vector<double>
      barrier;  // [rank] s between the pipeline's end and the step's in which the rank does not work
  std::vector<double> optimizer_time;  // [rank] s
  std::vector<RankBytes> bytes;        // [rank]
  double bubble() const;               // idle part of the step, all ranks together, barrier included
  int64_t peak_bytes() const;          // of the fullest rank
};

// `job` resolved, with a schedule's name or file, and a split other than cost. Throws UsageError.
Prediction predict(const config::JobConfig& job, const CostSource& source);

}  // namespace pptrain::app

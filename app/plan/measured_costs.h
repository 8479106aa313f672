// Costs of a job's passes from the trace of a run (run.dir/trace.json; the format is in README.md).
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "app/plan/prediction.h"
#include "core/config/job_config.h"

namespace pptrain::app {

// What a trace says, taken together over its steps and ranks. Times in seconds.
struct TraceSummary {
  config::JobConfig job;  // model sizes, schedule, split and batch of the run; the rest is default
  std::vector<models::MeasuredStage> stages;
  std::map<std::string, double> phases;  // mean of a rank and step: "optimizer", "data", ...
  double step_time = 0;                  // median of the traced steps
  // Fractions of the step, mean over steps: bubble, bubble_fill, ...
  std::map<std::string, double> bubble;
  std::vector<std::map<std::string, double>>
      by_kind;  // [rank] seconds a step, by category: forward, backward, ...
};

inline double value_or_zero(const std::map<std::string, double>& values, const std::string& key) {
  const auto found = values.find(key);
  return found == values.end() ? 0 : found->second;
}

// Throws UsageError that names the file where it is no trace of pptrain.
TraceSummary read_trace(const std::filesystem::path& path);

// Throws UsageError where the trace is of another model, sequence length, type or number of threads.
CostSource measured_costs(const config::JobConfig& job, const std::string& trace);

}  // namespace pptrain::app

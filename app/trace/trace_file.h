// trace.json: what every rank did when, in some steps of a run. Writes the file, and reads its times.
// README.md describes the format.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "app/plan/plan.h"
#include "app/trace/step_trace.h"
#include "core/metrics/step_record.h"
#include "parallel/pipeline/split_layers.h"
#include "parallel/schedule/cost/simulate.h"
#include "parallel/schedule/schedule.h"

namespace pptrain::app {

// `device`: cpu, or the GPU's name. `ranks`: [rank of the world][traced step]. `bubbles`: [traced step].
// `kernels`: kernel_shares_json of each rank of the world; empty on a GPU.
std::string render_trace_file(const Plan& plan, const std::string& device,
                              const std::vector<std::vector<StepTrace>>& ranks,
                              const std::vector<metrics::Bubble>& bubbles,
                              const std::vector<std::string>& kernels);

// A trace's contents, summed up over its steps and ranks. Times in seconds.
struct TraceSummary {
  PlanBase run;  // the job, as it ran
  pipeline::LayerAssignment layers;
  std::string schedule;  // its name
  schedule::Placement placement = schedule::Placement::loop;
  std::string device;                    // cpu, or the GPU's name
  double step_time = 0;                  // median of the traced steps
  std::map<std::string, double> bubble;  // fractions of the step, mean over steps: bubble, bubble_fill, ...
  std::map<std::string, double> phases;  // mean of a rank and step: "optimizer", "data", ...
  // [stage] mean of one action, by category: forward, backward, ...
  std::vector<std::map<std::string, double>> stages;
  // [rank of the world] per step, by category; phases by name.
  std::vector<std::map<std::string, double>> ranks;
};

// Throws UsageError that names the file if it is no trace of pptrain.
TraceSummary read_trace(const std::filesystem::path& path);

inline double value_or_zero(const std::map<std::string, double>& values, const std::string& key) {
  const auto found = values.find(key);
  return found == values.end() ? 0 : found->second;
}

// --- One step of a trace as a schedule with its times, for pictures.

struct TracedStep {
  int64_t step = 0;
  mesh::MeshShape mesh;
  // Only compute actions of the first replica, in the order in which they ran; the two of an overlapped pair
  // are separate.
  schedule::Schedule schedule;
  // Seconds from the first action's start to the last one's end. Idle time is not split.
  schedule::Simulation times;
};

// The last traced step. Throws UsageError that names the file if it is no trace of pptrain, or if the step
// has more than `most_actions`.
TracedStep read_traced_step(const std::filesystem::path& path, size_t most_actions);

}  // namespace pptrain::app

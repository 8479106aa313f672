// trace.json: what every rank did when, in some steps of a run. Here it is written, and read for its times.
// The format is in README.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "app/plan/plan.h"
#include "app/trace/step_trace.h"
#include "core/metrics/step_record.h"
#include "models/model_config.h"

namespace pptrain::app {

// The run that a trace is of: what a reader needs to take its times for costs of another run.
struct TracedRun {
  std::string schedule;
  std::string placement;  // loop | v
  int64_t pp = 1;
  int64_t dp_replicate = 1;
  int64_t dp_shard = 1;
  int64_t cp = 1;
  std::string cp_kind = "ring";
  int64_t tp = 1;
  int64_t ep = 1;
  bool reshard_after_forward = false;  // as it was, whether or not the job says so
  std::string reduce_gradients = "step";
  int64_t stages_per_rank = 1;
  std::vector<int64_t> layers_per_stage;
  int64_t microbatches = 1;
  int64_t micro_batch_size = 1;
  int64_t seq_len = 1;
  std::string lengths = "fixed";  // of microbatches: data.lengths
  std::string dtype;
  std::vector<std::string> recompute;  // one word, or one for each stage
  bool post_validation = false;
  std::string device;  // cpu, or the GPU's name
  int64_t threads = 1;
  models::ModelConfig model;  // its arch, sizes, `tied` and experts alone
};

// Ranks of its world.
inline int64_t world_size(const TracedRun& run) {
  return run.pp * run.dp_replicate * run.dp_shard * run.cp * run.tp;
}

// `device`: cpu, or the GPU's name. `ranks`: [rank of the world][traced step]. `bubbles`: [traced step].
// `kernels`: kernel_shares_json of each rank of the world; empty on a GPU.
std::string render_trace_file(const Plan& plan, const std::string& device,
                              const std::vector<std::vector<StepTrace>>& ranks,
                              const std::vector<metrics::Bubble>& bubbles,
                              const std::vector<std::string>& kernels);

// What a trace says, taken together over its steps and ranks. Times in seconds.
struct TraceSummary {
  TracedRun run;
  double step_time = 0;                  // median of the traced steps
  std::map<std::string, double> bubble;  // fractions of the step, mean over steps: bubble, bubble_fill, ...
  std::map<std::string, double> phases;  // mean of a rank and step: "optimizer", "data", ...
  // [stage] mean of one action, by category: forward, backward, ...
  std::vector<std::map<std::string, double>> stages;
  // [rank of the world] of a step, by category; phases by name.
  std::vector<std::map<std::string, double>> ranks;
};

// Throws UsageError that names the file where it is no trace of pptrain.
TraceSummary read_trace(const std::filesystem::path& path);

inline double value_or_zero(const std::map<std::string, double>& values, const std::string& key) {
  const auto found = values.find(key);
  return found == values.end() ? 0 : found->second;
}

}  // namespace pptrain::app

// A run as its folder shows it: metrics.jsonl in columns, its job, its checkpoints.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "app/run/pace.h"
#include "core/config/job_config.h"

namespace pptrain::app {

// Each row is one step, in ascending order.
struct StepColumns {
  std::vector<int64_t> step;
  std::vector<double> time;    // s since 1970 at the step's end; not below the one before
  std::vector<double> tokens;  // of the run so far
  // By key of metrics.jsonl: "loss", ...; NaN if the line has no value, or null.
  std::map<std::string, std::vector<double>> series;

  size_t size() const { return step.size(); }
};

struct EvaluationPoint {
  int64_t step = 0;
  double time = 0;
  double loss = 0;           // nats per token
  double bits_per_byte = 0;  // NaN: not known
};

// The job of an earlier start, which a later start has replaced: resolved.1.toml, ...
struct EarlierJob {
  std::string file;  // its name
  config::JobConfig job;
};

struct RunData {
  std::string name;              // as the user gave it
  std::filesystem::path folder;  // empty: only a file was given
  StepColumns steps;
  std::vector<EvaluationPoint> evaluations;
  std::vector<nlohmann::json> starts;  // headers, as in the file
  std::vector<int64_t> skipped;        // steps
  std::vector<int64_t> checkpoints;    // steps whose checkpoint was complete at some time; ascending
  std::vector<int64_t> kept;           // the existing ones
  nlohmann::json last;                 // the last step's record
  int64_t damaged = 0;                 // lines that are no record
  int64_t first_damaged = 0;           // number of the first of them, from 1
  std::optional<config::JobConfig> job;
  std::string job_problem;          // why there is no job
  std::vector<EarlierJob> earlier;  // the oldest first; unreadable ones are left out
  std::optional<PaceRecord> pace;
};

// The keys of a step's record that are read as series.
const std::vector<std::string>& series_keys();

// `run`: a run's folder or a file like metrics.jsonl. If a step comes twice, the later line counts, and
// earlier records of later steps do not. An unfinished last line is still being written, and left out. Throws
// UsageError if there is no such file.
RunData read_run(const std::string& run);

}  // namespace pptrain::app

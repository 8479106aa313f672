// A training run's log, on the console and in a file of the run's folder, and its first lines.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "app/data/datasets.h"
#include "app/plan/run_context.h"
#include "core/metrics/log_sinks.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/comm/bootstrap.h"

namespace pptrain::app {

// From here on what spdlog prints goes to standard output with the time, and is kept for the file. Of a rank
// that a launcher started, but rank 0, only warnings and errors are taken.
void start_log(metrics::Color color, const comm::Launch& launch);

// Writes what was kept to `run_dir`/log.txt (rank 0, or all ranks that are threads) or log.rank_N.txt, and
// from now on each line as it comes. Earlier starts' lines stay. Does nothing the second time, or without
// start_log.
void open_log(const std::filesystem::path& run_dir);

// Writes an error to the file alone: the console gets it from main.
void log_failure(const std::string& message);

// As checkpoints and metrics.jsonl have it. `data`: the fingerprint of the training data.
checkpoint::Layout describe_layout(const Plan& plan, const std::string& data);

// Rank 0: the lines of the log before the first step.
void announce(const RunContext& context, const std::vector<OpenSource>& sources);

}  // namespace pptrain::app

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

// From here on spdlog prints to standard output with the time, and the text is kept for the file. Ranks that
// a launcher started print only warnings and errors, except rank 0.
void start_log(metrics::Color color, const comm::Launch& launch);

// Writes the kept text to `run_dir`/log.txt (rank 0, or all ranks that are threads) or log.rank_N.txt, and
// from now on each line as it comes. Earlier starts' lines stay. Does nothing the second time, or without
// start_log.
void open_log(const std::filesystem::path& run_dir);

// Writes an error only to the file: main prints it on the console.
void log_failure(const std::string& message);

// The layout as in checkpoints and metrics.jsonl. `data`: the fingerprint of the training data.
checkpoint::Layout describe_layout(const Plan& plan, const std::string& data);

// Rank 0: the lines of the log before the first step.
void announce(const RunContext& context, const std::vector<OpenSource>& sources);

}  // namespace pptrain::app

// Where a training run's log goes: lines on the console, and a file in the run's folder.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "app/data/datasets.h"
#include "app/plan/run_context.h"
#include "core/metrics/log_sinks.h"
#include "core/metrics/prometheus.h"
#include "core/metrics/sinks.h"
#include "core/metrics/step_record.h"
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

// --- Where the records of a run go: rank 0 opens the sinks that the job names.

// Rank 0 takes the port of metrics.prometheus; nothing on other ranks, and where the job names none. Throws
// CommonFault on all ranks where the port cannot be had. Collective.
std::optional<metrics::Listener> listen_for_metrics(RunContext& context);

// All sinks, on rank 0. `header` is of this start; `so_far` says what the run has behind it (step, tokens,
// skipped steps, newest checkpoint). `listener`: what listen_for_metrics gave. Throws Error that names a file
// that cannot be written.
std::vector<std::unique_ptr<metrics::Sink>> open_sinks(const RunContext& context,
                                                       const metrics::RunHeader& header,
                                                       const metrics::StepRecord& so_far,
                                                       std::optional<metrics::Listener> listener);

// FLOP/s of all ranks' devices, what mfu is a fraction of. 0, with a warning, where it is not known.
double peak_flops_of_all(const RunContext& context);

// --- What a start of a run says of itself.

// As checkpoints and metrics.jsonl have it. `data`: the fingerprint of the training data.
checkpoint::Layout describe_layout(const Plan& plan, const std::string& data);

// Rank 0: the lines of the log before the first step.
void announce(const RunContext& context, const std::vector<OpenSource>& sources);

}  // namespace pptrain::app

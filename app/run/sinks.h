// Where the records of a run go: rank 0 opens the sinks that the job names.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "app/plan/run_context.h"
#include "core/metrics/prometheus/page_server.h"
#include "core/metrics/run_header.h"
#include "core/metrics/sinks.h"

namespace pptrain::app {

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

}  // namespace pptrain::app

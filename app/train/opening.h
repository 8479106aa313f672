// What a start of a run says of itself, and where its records go.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "app/train/run_context.h"
#include "core/metrics/run_header.h"
#include "core/metrics/sinks.h"
#include "parallel/checkpoint/checkpoint.h"

namespace pptrain::app {

// As checkpoints and metrics.jsonl have it. `data`: the fingerprint of the training data.
checkpoint::Layout describe_layout(const Plan& plan, const std::string& data);

// Rank 0: the lines of the log before the first step.
void announce(const RunContext& context);

// FLOP/s of all ranks together, of which mfu is a fraction; 0, after a warning, where it is not known.
double find_peak_flops(const RunContext& context);

// Rank 0: metrics.jsonl, the log's lines and, on a terminal, the bar. `step`: that the start goes on from.
std::vector<std::unique_ptr<metrics::Sink>> open_sinks(const RunContext& context,
                                                       const metrics::RunHeader& header, int64_t step);

}  // namespace pptrain::app

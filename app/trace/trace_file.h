// trace.json: what every rank did when, in some steps of a run. The format is in README.md.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "app/trace/step_trace.h"
#include "app/train/run_context.h"
#include "core/metrics/step_record.h"
#include "parallel/schedule/schedule.h"

namespace pptrain::app {

// `ranks`: [rank of the world][traced step]. `bubbles`: [traced step].
std::string render_trace_file(const RunContext& context, const schedule::Schedule& schedule,
                              const std::vector<std::pair<int, int>>& layers,
                              const std::vector<std::vector<StepTrace>>& ranks,
                              const std::vector<metrics::Bubble>& bubbles);

}  // namespace pptrain::app

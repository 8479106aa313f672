// Records as lines of metrics.jsonl: what each key means is in README.md.
#pragma once

#include <string>

#include "core/metrics/run_header.h"
#include "core/metrics/step_record.h"

namespace pptrain::metrics {

// One JSON object on one line; floats with all their digits, null where not finite.
std::string to_json(const RunHeader& header);
std::string to_json(const StepRecord& record);
std::string to_json(const EvalRecord& record);
std::string to_json(const Bubble& bubble);  // {"bubble", "bubble_fill", ...}

}  // namespace pptrain::metrics

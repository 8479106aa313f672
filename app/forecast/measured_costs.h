// Costs of a job's passes from the trace of a run of the same model.
#pragma once

#include <string>

#include "app/forecast/costs.h"

namespace pptrain::app {

// `trace_path`: run.dir/trace.json. Throws UsageError where it is no trace, or one of another model, sequence
// length, type or number of threads.
CostSource measured_costs(const PlanBase& base, const std::string& trace_path);

}  // namespace pptrain::app

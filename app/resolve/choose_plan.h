// Chooses what a job leaves open.
#pragma once

#include <optional>

#include "app/plan/plan.h"
#include "app/resolve/given_pipeline.h"
#include "core/config/loader.h"

namespace pptrain::app {

// The plan of a job without faults. `awaits_choices`: if something is open, a plan that awaits rank 0's
// choices. Reports if no rank has room for any layout, or if costs are missing, and then returns nothing.
std::optional<Plan> choose_plan(PlanBase base, GivenPipeline given, bool awaits_choices,
                                const config::ReportConflict& report);

}  // namespace pptrain::app

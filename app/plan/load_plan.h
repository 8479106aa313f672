// From a job file to its plan: checked against what schedules and splits allow, and filled in.
#pragma once

#include <span>
#include <string>

#include "app/plan/plan.h"

namespace pptrain::app {

// Reads the job and resolves it, once: a schedule's plain name, stages per rank, split; what auto and cost
// leave open is chosen. Throws UsageError with every problem of the job.
Plan load_plan(const std::string& path, std::span<const std::string> overrides);

// The same from text; `name` stands for the file in messages.
Plan parse_plan(const std::string& text, const std::string& name, std::span<const std::string> overrides);

// The same for the search, which chooses everything: what auto and cost leave open stays open.
PlanBase load_plan_base(const std::string& path, std::span<const std::string> overrides);

}  // namespace pptrain::app

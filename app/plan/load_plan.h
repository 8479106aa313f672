// From a job file to its plan: checked against what schedules and splits allow, and filled in.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "app/plan/plan.h"

namespace pptrain::app {

// Reads the job and resolves it, once: a schedule's plain name, stages per rank, split; what auto and cost
// leave open is chosen. `world`: the ranks that there are, which dp_shard = -1 fills and any other mesh must
// have; 0 where that is not known. Throws UsageError with every problem of the job.
Plan load_plan(const std::string& path, std::span<const std::string> overrides, int64_t world = 0);

// The same from text; `name` stands for the file in messages.
Plan parse_plan(const std::string& text, const std::string& name, std::span<const std::string> overrides,
                int64_t world = 0);

// The same for the search, which chooses everything: what auto and cost leave open stays open.
PlanBase load_plan_base(const std::string& path, std::span<const std::string> overrides, int64_t world = 0);

}  // namespace pptrain::app

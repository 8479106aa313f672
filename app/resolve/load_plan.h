// From a job file to its plan: checked against what schedules and splits allow, and filled in.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "app/plan/plan.h"
#include "core/config/loader.h"

namespace pptrain::app {

struct LoadOptions {
  // The ranks that there are, which dp_shard = -1 fills and any other mesh must have; 0: not known.
  int64_t world = 0;
  // Data and checkpoints must be there; a plan alone has no use for them.
  bool needs_files = true;
  bool reads_data = true;  // Plan::reads_data
  // A run's folder, whose job is loaded: what its newest start chose counts where this job has the same
  // layout and leaves the same open; "": none.
  std::string choices_of = {};
  // Otherwise the schedule and the split of training count where they are possible, and do not keep a job
  // from being loaded: passes forward need neither.
  bool trains = true;
  // Rank 0 chooses what the job leaves open, once for all: where something is, the plan awaits it.
  bool awaits_choices = false;
  // Called with the plan of a job without problems; what it reports is a problem of the job.
  std::function<void(const Plan&, const config::ReportConflict&)> inspect = {};
};

// Reads the job and resolves it, once: a schedule's plain name, stages per rank, split; what auto and cost
// leave open is chosen. Throws UsageError with every problem of the job.
Plan load_plan(const std::string& path, std::span<const std::string> overrides,
               const LoadOptions& options = {});

// The same from text; `name` stands for the file in messages.
Plan parse_plan(const std::string& text, const std::string& name, std::span<const std::string> overrides,
                const LoadOptions& options = {});

// The same for the search, which chooses everything: what auto and cost leave open stays open, and so does
// the schedule that the job names.
PlanBase load_plan_base(const std::string& path, std::span<const std::string> overrides,
                        const LoadOptions& options = {});

}  // namespace pptrain::app

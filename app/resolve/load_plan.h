// Turns a job file into its plan: checks it against schedules and splits, and fills it in.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "app/plan/plan.h"
#include "core/config/loader.h"

namespace pptrain::app {

struct LoadOptions {
  // The number of ranks, which dp_shard = -1 fills and any other mesh must match; 0: not known.
  int64_t world = 0;
  // `world` counts launched processes, each of which may have several ranks.
  bool of_processes = false;
  // If fewer processes were launched than the job has ranks, shortens the pipeline to the longest one of
  // which each rank has a process, where the bits stay the same: the other processes are spare.
  bool fits_pipeline = false;
  // Data and checkpoints must exist; a plan alone does not need them.
  bool needs_files = true;
  bool reads_data = true;  // Plan::reads_data
  // The folder of the run whose job is loaded; "": none. The choices of its newest start hold if this job has
  // the same layout and leaves the same keys open.
  std::string choices_of = {};
  // Otherwise the schedule and the split of training are used if possible, and do not keep a job from being
  // loaded: forward passes need neither.
  bool trains = true;
  bool gives_logits = false;  // of load_plan(): one rank needs all of a token's, so the head is whole
  // Rank 0 chooses what the job leaves open, once for all. If there is something, the plan awaits it.
  bool awaits_choices = false;
  // Called with the plan of a job without faults; what it reports is a fault of the job.
  std::function<void(const Plan&, const config::ReportConflict&)> inspect = {};
};

// Reads the job and resolves it: a schedule's plain name, stages per rank, split; chooses what auto and cost
// leave open. Throws UsageError with every fault of the job.
Plan load_plan(const std::string& path, std::span<const std::string> overrides,
               const LoadOptions& options = {});

// The same from text; messages call the file `name`.
Plan parse_plan(const std::string& text, const std::string& name, std::span<const std::string> overrides,
                const LoadOptions& options = {});

// The same for the search, which chooses everything: what auto and cost leave open stays open, as does the
// schedule that the job names.
PlanBase load_plan_base(const std::string& path, std::span<const std::string> overrides,
                        const LoadOptions& options = {});

}  // namespace pptrain::app

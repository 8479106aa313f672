// Finds the layout of a job that the predictions like best.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "app/forecast/costs.h"
#include "app/plan/plan.h"

namespace pptrain::app {

struct SearchOptions {
  bool microbatches = false;  // also other micro_batch_size x grad_accum_steps of the same product
  bool recompute = true;      // also stages that recompute, where a layout does not fit without
  double budget = 0;          // bytes a rank; 0: no bound
};

// make_plan(base, layout, *lowered) is its plan.
struct Candidate {
  Layout layout;
  std::shared_ptr<const schedule::Schedule> lowered;  // shared by candidates that differ in the split alone
  double step_time = 0;                               // s, predicted, as all that follows
  double tokens_per_s = 0;
  double bubble = 0;
  int64_t peak_bytes = 0;  // of the fullest rank
  bool fits = true;
};

// Every training schedule x stages per rank x split (even, cost) that the job allows, fitting ones first, the
// fastest first; of equally fast ones the one with less memory. Schedules that are the same lists of actions
// are one, the first of training_schedule_names(). Throws UsageError if there is none.
std::vector<Candidate> search(const PlanBase& base, const CostSource& source, const SearchOptions& options);

// Bytes that a rank may use: distributed.pp_memory_gb, else the device's memory, else 0 for no bound.
double memory_budget(const PlanBase& base, const CostSource& source);

}  // namespace pptrain::app

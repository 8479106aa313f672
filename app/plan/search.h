// Finds the layout of a job that the predictions like best.
#pragma once

#include <string>
#include <vector>

#include "app/plan/prediction.h"
#include "core/config/job_config.h"

namespace pptrain::app {

// Layers of each stage such that the predicted step is short: from the even split, moves one layer at a time
// while that helps. Embedding and head weigh what they cost.
pipeline::LayerAssignment cost_split(const config::JobConfig& job, const CostSource& source);

// Puts the layers into the job as a list.
void set_split(config::JobConfig& job, const pipeline::LayerAssignment& layers);

struct SearchOptions {
  bool microbatches = false;  // also other micro_batch_size x grad_accum_steps of the same product
  bool recompute = true;      // also train.recompute = full, where nothing else fits
  double budget = 0;          // bytes a rank; 0: no bound
};

struct Candidate {
  config::JobConfig job;  // resolved: the schedule, the split, the microbatches
  Prediction prediction;
  bool fits = true;
};

// Every training schedule x stages per rank x split (even, cost) that the job allows, fitting ones first, the
// fastest first; of equally fast ones the one with less memory. Throws UsageError if there is none.
std::vector<Candidate> search(const config::JobConfig& job, const CostSource& source,
                              const SearchOptions& options);

// Bytes that a rank may use: distributed.pp_memory_gb, else the device's memory, else 0 for no bound.
double memory_budget(const config::JobConfig& job, const CostSource& source);

// The ranking as text, at most `rows` of it.
std::string render_ranking(const std::vector<Candidate>& candidates, double budget, size_t rows = 20);

}  // namespace pptrain::app

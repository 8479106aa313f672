#include "app/pipeline_plan.h"

#include "parallel/pipeline/split_layers.h"
#include "parallel/schedule/generators.h"
#include "parallel/schedule/passes.h"

namespace pptrain::app {

std::vector<std::pair<int, int>> stage_layers(const config::JobConfig& job, int64_t layers) {
  const config::DistributedSection& d = job.distributed;
  const int stages = static_cast<int>(d.pp);
  if (!d.pp_split.empty())
    return pipeline::explicit_layer_assignment(static_cast<int>(layers), stages, d.pp_split);
  return pipeline::compute_layer_assignment(static_cast<int>(layers), stages, d.pp_embedding_weight,
                                            d.pp_head_weight);
}

schedule::Schedule training_compute(const config::JobConfig& job) {
  return schedule::make_schedule({.name = job.distributed.pp_schedule,
                                  .ranks = static_cast<int>(job.distributed.pp),
                                  .microbatches = static_cast<int>(job.train.grad_accum_steps),
                                  .stages_per_rank = 1});
}

schedule::Schedule training_schedule(const config::JobConfig& job) {
  return schedule::lower(training_compute(job));
}

}  // namespace pptrain::app

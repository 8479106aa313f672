#include "app/plan/pipeline_plan.h"

#include "app/plan/job.h"
#include "parallel/pipeline/split_layers.h"
#include "parallel/schedule/generators/generators.h"
#include "parallel/schedule/passes/passes.h"
#include "parallel/schedule/render/csv.h"

namespace pptrain::app {

std::vector<std::pair<int, int>> stage_layers(const config::JobConfig& job, int64_t layers) {
  const config::DistributedSection& d = job.distributed;
  const int stages = static_cast<int>(d.pp * d.pp_stages_per_rank);
  const config::PipelineSplit& split = d.pp_split;
  if (!split.layers.empty())
    return pipeline::explicit_layer_assignment(static_cast<int>(layers), stages, split.layers);
  if (split.text != "even")
    return pipeline::layout_layer_assignment(static_cast<int>(layers), stages, split.text);
  return pipeline::compute_layer_assignment(static_cast<int>(layers), stages, d.pp_embedding_weight,
                                            d.pp_head_weight);
}

schedule::Schedule training_compute(const config::JobConfig& job) {
  const config::DistributedSection& d = job.distributed;
  if (is_schedule_file(d.pp_schedule)) return schedule::load_schedule(d.pp_schedule);
  return schedule::make_schedule({.name = d.pp_schedule,
                                  .ranks = static_cast<int>(d.pp),
                                  .microbatches = static_cast<int>(job.train.grad_accum_steps),
                                  .stages_per_rank = static_cast<int>(d.pp_stages_per_rank)});
}

schedule::Schedule training_schedule(const config::JobConfig& job) {
  return schedule::lower(training_compute(job));
}

}  // namespace pptrain::app

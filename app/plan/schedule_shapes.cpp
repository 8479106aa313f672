#include "app/plan/schedule_shapes.h"

#include "core/base/error.h"
#include "parallel/schedule/generators/generators.h"
#include "parallel/schedule/passes/passes.h"

namespace pptrain::app {

std::shared_ptr<const schedule::Schedule> ScheduleShapes::of(const ShapeKey& key) {
  const auto known = known_.find(key);
  if (known != known_.end()) return known->second;
  std::shared_ptr<const schedule::Schedule> made;
  try {
    schedule::Schedule lists = schedule::make_schedule({.name = key.schedule,
                                                        .ranks = key.ranks,
                                                        .microbatches = key.microbatches,
                                                        .stages_per_rank = key.stages_per_rank});
    lists = schedule::split_pairs(lists);
    if (key.unshard) lists = schedule::add_unshard(lists, key.streamed);
    lists = schedule::add_reduce_grad(
        lists, key.every_microbatch ? schedule::Reduce::microbatch : schedule::Reduce::step);
    made = std::make_shared<const schedule::Schedule>(std::move(lists));
  } catch (const UsageError&) {  // it does not exist for these numbers
  }
  return known_.emplace(key, std::move(made)).first->second;
}

}  // namespace pptrain::app

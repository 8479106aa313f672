#include "app/forecast/schedule_shapes.h"

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
    if (key.unshard)
      lists =
          schedule::add_unshard(lists, key.streamed ? schedule::Gather::streamed : schedule::Gather::kept);
    lists = schedule::add_reduce_grad(
        lists, key.every_microbatch ? schedule::Reduce::microbatch : schedule::Reduce::step);
    made = std::make_shared<const schedule::Schedule>(std::move(lists));
  } catch (const UsageError&) {  // it does not exist for these numbers
  }
  return known_.emplace(key, std::move(made)).first->second;
}

bool has_plain_form(const std::string& schedule, int64_t stages_per_rank) {
  return stages_per_rank == 1 &&
         (schedule == "looped_bfs" || schedule == "interleaved_1f1b" || schedule == "interleaved_zb");
}

bool ScheduleShapes::repeats_another(const ShapeKey& key) {
  if (has_plain_form(key.schedule, key.stages_per_rank)) return true;
  const auto found = repeats_.find(key);
  return found != repeats_.end() ? found->second : repeats_.emplace(key, find_twin(key)).first->second;
}

bool ScheduleShapes::find_twin(const ShapeKey& key) {
  const auto own = of(key);
  if (!own) return false;
  for (const std::string& name : schedule::training_schedule_names()) {
    if (name == key.schedule) return false;
    ShapeKey earlier = key;
    earlier.schedule = name;
    const auto other = of(earlier);
    const bool same_place = key.stages_per_rank == 1 || (other && other->placement == own->placement);
    if (other && same_place && other->actions == own->actions) return true;
  }
  return false;
}

}  // namespace pptrain::app

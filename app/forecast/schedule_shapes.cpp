#include "app/forecast/schedule_shapes.h"

#include <string>

#include "core/base/error.h"

namespace pptrain::app {

std::shared_ptr<const schedule::Schedule> ScheduleShapes::of(const schedule::ScheduleSpec& spec,
                                                             const schedule::ShardOptions& shard) {
  const Key key(spec, shard);
  if (const auto known = known_.find(key); known != known_.end()) return known->second;
  std::shared_ptr<const schedule::Schedule> made;
  try {
    schedule::Schedule lists = schedule::split_pairs(schedule::make_schedule(spec), shard.keep_pairs);
    if (shard.gather != schedule::Gather::never) lists = schedule::add_unshard(lists, shard.gather);
    made = std::make_shared<const schedule::Schedule>(schedule::add_reduce_grad(lists, shard.reduce));
  } catch (const UsageError&) {  // it does not exist for these numbers
  }
  return known_.emplace(key, std::move(made)).first->second;
}

bool ScheduleShapes::repeats_another(const schedule::ScheduleSpec& spec,
                                     const schedule::ShardOptions& shard) {
  if (spec.stages_per_rank == 1 && schedule::repeats_with_one_stage(spec.name)) return true;
  const Key key(spec, shard);
  const auto found = repeats_.find(key);
  return found != repeats_.end() ? found->second : repeats_.emplace(key, find_twin(key)).first->second;
}

bool ScheduleShapes::find_twin(const Key& key) {
  const auto own = of(key.first, key.second);
  if (!own) return false;
  for (const std::string& name : schedule::training_schedule_names()) {
    if (name == key.first.name) return false;
    schedule::ScheduleSpec earlier = key.first;
    earlier.name = name;
    const auto other = of(earlier, key.second);
    const bool same_place = key.first.stages_per_rank == 1 || (other && other->placement == own->placement);
    if (other && same_place && other->actions == own->actions) return true;
  }
  return false;
}

}  // namespace pptrain::app

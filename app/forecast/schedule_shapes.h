// Short steps of every schedule, which stand for long ones: after the pipeline is full, each further
// microbatch adds the same.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "parallel/schedule/generators/generators.h"
#include "parallel/schedule/generators/interleaved_order.h"
#include "parallel/schedule/passes/passes.h"
#include "parallel/schedule/schedule.h"

namespace pptrain::app {

// Each generated once, without sends and receives, hence neither lowered nor proven: only for simulation.
class ScheduleShapes {
 public:
  // Null if the schedule does not exist for these numbers. `shard`: what its lists do with sharded
  // parameters.
  std::shared_ptr<const schedule::Schedule> of(const schedule::ScheduleSpec& spec,
                                               const schedule::ShardOptions& shard);

  // Does a schedule earlier in training_schedule_names() have the same list of actions, or an equivalent one?
  bool repeats_another(const schedule::ScheduleSpec& spec, const schedule::ShardOptions& shard);

 private:
  using Key = std::pair<schedule::ScheduleSpec, schedule::ShardOptions>;
  bool find_twin(const Key& key);

  std::map<Key, std::shared_ptr<const schedule::Schedule>> known_;
  std::map<Key, bool> repeats_;  // what repeats_another() has found
};

// Predicts a step of many microbatches from two short ones: simulated at `few` and at `more` microbatches, it
// grows linearly beyond them. If there are few microbatches, both are all of them. They are two and three
// rounds of interleaved schedules. Rounds are as long as the step's own, as they determine how much is in
// flight.
struct Stretch {
  explicit Stretch(int ranks, int microbatches) : all(microbatches) {
    const int rounds = schedule::microbatches_per_round(ranks, microbatches);
    const int round = rounds > 0 ? rounds : ranks;
    few = std::min(2 * round, microbatches);
    more = std::min(3 * round, microbatches);
  }

  bool is_whole() const { return more == all; }
  double at_all(double of_few, double of_more) const {
    return is_whole() ? of_more : of_more + (of_more - of_few) / (more - few) * (all - more);
  }

  int few = 0, more = 0, all = 0;
};

}  // namespace pptrain::app

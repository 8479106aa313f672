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

// Generated once each. Without sends and receives, so neither lowered nor proven: to be simulated alone.
class ScheduleShapes {
 public:
  // Null where the schedule does not exist for these numbers. `shard`: what its lists do with parameters that
  // ranks share.
  std::shared_ptr<const schedule::Schedule> of(const schedule::ScheduleSpec& spec,
                                               const schedule::ShardOptions& shard);

  // Is the same list of actions there for a schedule earlier in training_schedule_names(), or one that does
  // the same?
  bool repeats_another(const schedule::ScheduleSpec& spec, const schedule::ShardOptions& shard);

 private:
  using Key = std::pair<schedule::ScheduleSpec, schedule::ShardOptions>;
  bool find_twin(const Key& key);

  std::map<Key, std::shared_ptr<const schedule::Schedule>> known_;
  std::map<Key, bool> repeats_;  // what repeats_another() has found
};

// A step of many microbatches as two short ones: at `few` and at `more` microbatches it is simulated, and
// beyond that it grows in proportion. Both are all of them where there are few. They are two and three rounds
// of interleaved schedules as long as the step's own, on which depends how much is in flight.
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

// Short steps of every schedule, which stand for long ones: after the pipeline is full, each further
// microbatch adds the same.
#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "parallel/schedule/generators/interleaved_order.h"
#include "parallel/schedule/schedule.h"

namespace pptrain::app {

// What a schedule is generated from, and what its lists do with shared parameters.
struct ShapeKey {
  std::string schedule;
  int ranks = 1;
  int stages_per_rank = 1;
  int microbatches = 1;
  bool unshard = false;
  bool streamed = false;
  bool every_microbatch = false;

  auto operator<=>(const ShapeKey&) const = default;
};

// With one stage per rank the schedules made for several are others under another name: looped_bfs is gpipe,
// interleaved_zb is zb_h1, and interleaved_1f1b is 1f1b with more microbatches in flight for nothing.
bool has_plain_form(const std::string& schedule, int64_t stages_per_rank);

// Generated once each. Without sends and receives, so neither lowered nor proven: to be simulated alone.
class ScheduleShapes {
 public:
  // Null where the schedule does not exist for these numbers.
  std::shared_ptr<const schedule::Schedule> of(const ShapeKey& key);

  // Is the same list of actions there for a schedule earlier in training_schedule_names(), or one that does
  // the same?
  bool repeats_another(const ShapeKey& key);

 private:
  bool find_twin(const ShapeKey& key);

  std::map<ShapeKey, std::shared_ptr<const schedule::Schedule>> known_;
  std::map<ShapeKey, bool> repeats_;  // what repeats_another() has found
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

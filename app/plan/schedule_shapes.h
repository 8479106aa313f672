// Short steps of every schedule, which stand for long ones: after the pipeline is full, each further
// microbatch adds the same.
#pragma once

#include <algorithm>
#include <compare>
#include <map>
#include <memory>
#include <string>

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

// Generated once each. Without sends and receives, so neither lowered nor proven: to be simulated alone.
class ScheduleShapes {
 public:
  // Null where the schedule does not exist for these numbers.
  std::shared_ptr<const schedule::Schedule> of(const ShapeKey& key);

 private:
  std::map<ShapeKey, std::shared_ptr<const schedule::Schedule>> known_;
};

// A step of many microbatches as two short ones: at `few` and at `more` microbatches it is simulated, and
// beyond that it grows in proportion. Both are all of them where there are few.
struct Stretch {
  explicit Stretch(int ranks, int microbatches)
      : few(std::min(2 * ranks, microbatches)), more(std::min(3 * ranks, microbatches)), all(microbatches) {}

  bool is_whole() const { return more == all; }
  double at_all(double of_few, double of_more) const {
    return is_whole() ? of_more : of_more + (of_more - of_few) / (more - few) * (all - more);
  }

  int few, more, all;
};

}  // namespace pptrain::app

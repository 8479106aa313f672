#include "parallel/pipeline/action_times.h"

#include <algorithm>

namespace pptrain::pipeline {

void ActionTimes::reset() {
  marks_.reset(device_);
  marked_.clear();
  begun_ = 0;
}

void ActionTimes::begin() {
  now_ = begun_++;
  mark(Moment::wait);
}

void ActionTimes::goes_on(size_t number) {
  now_ = number;
  mark(Moment::goes_on);
}

void ActionTimes::mark(Moment moment) {
  if (!device_) return;
  marks_.mark();
  marked_.emplace_back(now_, moment);
}

// An action takes the time from its start, and from each of its later turns, to the next mark.
std::vector<ActionTime> ActionTimes::read() {
  const auto marks = marks_.times();
  std::vector<ActionTime> times(marks.empty() ? 0 : begun_);
  for (size_t i = 0; i < marks.size(); ++i) {
    const auto& [action, moment] = marked_[i];
    ActionTime& time = times[action];
    if (moment == Moment::wait) time.wait = marks[i];
    if (moment == Moment::start) time.start = time.end = marks[i];
    if (moment == Moment::start || moment == Moment::goes_on) time.end += marks[i + 1] - marks[i];
  }
  for (size_t i = 1; i < times.size(); ++i) {  // the second half of a pair stands behind the first one
    const auto early = std::max(times[i - 1].end - times[i].start, TimeMarks::Clock::duration::zero());
    times[i].wait = std::max(times[i].wait, times[i - 1].end);
    times[i].start += early;
    times[i].end += early;
  }
  return times;
}

}  // namespace pptrain::pipeline

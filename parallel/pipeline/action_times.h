// When a list's actions ran.
#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "parallel/pipeline/time_marks.h"

namespace pptrain::pipeline {

// The halves of an overlapped pair stand one after the other, each as long as its turns.
struct ActionTime {
  TimeMarks::Clock::time_point wait;   // its turn came: it waits for its receive, if it has one
  TimeMarks::Clock::time_point start;  // it had its input
  TimeMarks::Clock::time_point end;
};

// Times the actions of one run of a list, in order.
class ActionTimes {
 public:
  // From the next reset() on: the host's clock (the CPU, as at first), a device's, or no times at all.
  void time_on(std::optional<c10::Device> device) { device_ = device; }
  // Drops all times.
  void reset();

  // The next action's turn came. It has its input; it has ended.
  void begin();
  void starts() { mark(Moment::start); }
  void ends() { mark(Moment::end); }
  // Action `number` (from 0) goes on after the other half of its pair.
  void goes_on(std::size_t number);

  std::size_t count() const { return begun_; }
  // One time for each action, or none. On a device it waits for the device.
  std::vector<ActionTime> read();

 private:
  enum class Moment { wait, start, goes_on, end };
  void mark(Moment moment);

  std::optional<c10::Device> device_ = c10::kCPU;
  TimeMarks marks_;
  std::vector<std::pair<std::size_t, Moment>> marked_;  // [mark] the action, by its number, and the moment
  std::size_t begun_ = 0;
  std::size_t now_ = 0;  // the action that runs
};

}  // namespace pptrain::pipeline

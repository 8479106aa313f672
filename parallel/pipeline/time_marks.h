// Moments of a step, noted as cheaply as possible and read afterwards.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <chrono>
#include <optional>
#include <span>
#include <vector>

namespace pptrain::pipeline {

// A mark is the moment at which the host calls mark(): a clock read. On a device, whose work the host only
// queues, it is the moment at which the current stream gets there: a recorded event.
class TimeMarks {
 public:
  using Clock = std::chrono::steady_clock;

  // Drops all marks. From now on moments are those of `device`; without one, mark() does nothing.
  void reset(std::optional<c10::Device> device);
  void mark() {
    if (!device_) return;
    if (device_->is_cpu()) {
      times_.push_back(Clock::now());
    } else {
      record_event();
    }
  }
  // All marks, in order, on the host's clock. On a device it waits for the current stream, and is exact to
  // the time that the wait takes to return (some microseconds).
  std::span<const Clock::time_point> times();

 private:
  void record_event();

  std::optional<c10::Device> device_;
  std::vector<Clock::time_point> times_;
  std::vector<c10::Event> events_;  // kept for the next step
  size_t recorded_ = 0;
};

}  // namespace pptrain::pipeline

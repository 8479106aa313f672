#include "parallel/pipeline/time_marks.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace pptrain::pipeline {
namespace {

c10::Event timing_event(c10::Device device) {
  return {device.type(), c10::EventFlag::BACKEND_DEFAULT};  // the other flag makes CUDA events without times
}

void record(c10::Event& event, c10::Device device) {
  event.record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
}

}  // namespace

void TimeMarks::reset(std::optional<c10::Device> device) {
  device_ = device;
  times_.clear();
  recorded_ = 0;
}

void TimeMarks::record_event() {
  if (recorded_ == events_.size()) events_.push_back(timing_event(*device_));
  record(events_[recorded_++], *device_);
}

std::span<const TimeMarks::Clock::time_point> TimeMarks::times() {
  if (times_.size() >= recorded_) return times_;
  c10::Event last = timing_event(*device_);
  record(last, *device_);
  last.synchronize();
  const Clock::time_point now = Clock::now();
  times_.clear();
  for (size_t i = 0; i < recorded_; ++i) {
    const std::chrono::duration<double, std::milli> ago(events_[i].elapsedTime(last));
    times_.push_back(now - std::chrono::duration_cast<Clock::duration>(ago));
  }
  return times_;
}

}  // namespace pptrain::pipeline

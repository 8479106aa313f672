// The time that a thread spends in waits for other ranks.
#pragma once

#include <chrono>

namespace pptrain::comm {

// Each wait of a transport (Work::wait, Work::wait_for) has one while it may block.
class TimedWait {
 public:
  using Clock = std::chrono::steady_clock;

  TimedWait() = default;
  ~TimedWait() { waited_ += Clock::now() - since_; }
  TimedWait(const TimedWait&) = delete;
  TimedWait& operator=(const TimedWait&) = delete;

  // Seconds of this thread so far.
  static double seconds() { return std::chrono::duration<double>(waited_).count(); }

 private:
  inline static thread_local Clock::duration waited_{};
  Clock::time_point since_ = Clock::now();
};

}  // namespace pptrain::comm

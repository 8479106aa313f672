// The end of a wait that got no answer.
#pragma once

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <chrono>
#include <string>

#include "core/base/error.h"
#include "core/base/timing.h"

namespace pptrain::comm {

// A communicator's timeout until set_timeout() says otherwise.
inline constexpr std::chrono::minutes default_timeout{10};

// A wait for another rank was longer than the communicator's timeout. No rank is known to be dead: what the
// others are doing meanwhile tells whose fault it is.
class WaitTimeout : public Error {
 public:
  using Error::Error;
};

inline std::string timeout_message(int rank, std::chrono::milliseconds timeout, const std::string& operation,
                                   const std::string& what) {
  return fmt::format("rank {} waited {:.1f} s for {}{}{}; a peer is stuck or slower than the timeout", rank,
                     in_seconds(timeout), operation, what.empty() ? "" : ": ", what);
}

// --- The end of a wait, as the process has lived it.

// Time in which the whole process stood still (Ctrl-Z and SIGCONT, a paused virtual machine) does not count:
// the peers may have stood still too. It is told from the gap between two looks, so passed() is called at
// least once a second while the wait lasts.
class PatientDeadline {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds look_every{1};

  // A timeout of years is one of ten years.
  explicit PatientDeadline(std::chrono::milliseconds timeout, Clock::time_point now = Clock::now())
      : last_(now), end_(now + std::min<std::chrono::milliseconds>(timeout, std::chrono::hours(87'600))) {}

  bool passed(Clock::time_point now = Clock::now()) {
    const auto gap = now - last_;
    last_ = now;
    if (gap > standstill) end_ += gap;
    return now >= end_;
  }
  // Until when to sleep before the next look.
  Clock::time_point next_look() const { return std::min(end_, last_ + look_every); }

 private:
  static constexpr std::chrono::seconds standstill{3};

  Clock::time_point last_;
  Clock::time_point end_;
};

}  // namespace pptrain::comm

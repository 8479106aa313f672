// How long the rest of the run will take.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

namespace pptrain::metrics {

// The median of the latest steps, which neither a slow first step nor a suspended process moves, and on top
// of it what evaluations and saves have taken so far, spread over the steps.
class TimeLeft {
 public:
  void step(double seconds);
  // An evaluation or a save.
  void pause(double seconds) { paused_ += seconds; }

  // Seconds for so many steps more; nothing until a few steps were timed, or where times are not finite.
  std::optional<double> estimate(int64_t steps) const;

 private:
  static constexpr size_t first_steps = 3;  // nothing is said before these
  static constexpr size_t kept = 31;
  std::deque<double> latest_;
  int64_t steps_ = 0;
  double paused_ = 0;
};

}  // namespace pptrain::metrics

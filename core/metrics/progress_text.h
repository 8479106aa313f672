// The line at the bottom of a terminal that says how far a run is, as wide as the terminal allows.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "core/metrics/step_record.h"

namespace pptrain::metrics {

// --- How long the rest of the run will take.

// The median of the latest steps, which neither a slow first step nor a suspended process moves, and on top
// of it what evaluations and saves have taken so far, spread over the steps.
class TimeLeft {
 public:
  void step(double seconds);
  // An evaluation or a save.
  void pause(double seconds) { paused_ += seconds; }

  // Seconds for so many steps more; nothing until a few steps were timed, or if times are not finite.
  std::optional<double> estimate(int64_t steps) const;

 private:
  static constexpr size_t first_steps = 3;  // no estimate before these
  static constexpr size_t kept = 31;
  std::deque<double> latest_;
  int64_t steps_ = 0;
  double paused_ = 0;
};

// --- Records and figures in words, for people.

// For printing: a processor's own NaN has a sign ("-nan"), which says nothing.
double unsigned_nan(double value);

// "step 120/800 loss 1.6387 lr 3.000e-03 ...": a line of the log. If `columns` are too few, fields are left
// out: the step's time first, then memory, mfu, learning rate, norm, tokens/s.
std::string format_line(const StepRecord& record, int64_t last_step,
                        std::optional<double> seconds_left = std::nullopt,
                        std::optional<int> columns = std::nullopt);
std::string format_line(const EvalRecord& record);

// 1234567 -> "1,234,567".
std::string with_commas(int64_t value);

// "0:42", "5:12", "3:05:09", "12d 04h"; `seconds` is finite and not negative.
std::string duration_text(double seconds);

struct Progress {
  std::optional<StepRecord> latest;  // nothing before the first step of this start
  int64_t first_step = 0;            // the step that this start began from
  int64_t last_step = 0;
  std::optional<double> seconds_left;
  std::string phase;  // "evaluating", "saving"; empty while steps go on
};

// One line of at most `columns` - 1 characters, all ASCII, so that no terminal wraps it; "" if columns < 2.
// The step comes first; then, as width allows and in this order: phase, loss, time left, tokens/s, a bar,
// grad norm, learning rate, mfu, memory. `color`: with escape sequences, which take no columns.
std::string progress_text(const Progress& progress, int columns, bool color = false);

}  // namespace pptrain::metrics

// The line at the bottom of a terminal that says how far a run is, as wide as the terminal allows.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/metrics/step_record.h"

namespace pptrain::metrics {

struct Progress {
  std::optional<StepRecord> latest;  // nothing before the first step of this start
  int64_t first_step = 0;            // the step that this start began from
  int64_t last_step = 0;
  std::optional<double> seconds_left;
  std::string phase;  // "evaluating", "saving"; empty while steps go on
};

// One line of at most `columns` - 1 characters, all ASCII, so that no terminal wraps it; "" where columns
// < 2. The step comes first; then, as width allows and in this order: phase, loss, time left, tokens/s, a
// bar, grad norm, learning rate, mfu, memory. `color`: with escape sequences, which take no columns.
std::string progress_text(const Progress& progress, int columns, bool color = false);

}  // namespace pptrain::metrics

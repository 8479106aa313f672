// Records and figures in words, for people.
#pragma once

#include <cstdint>
#include <string>

#include "core/metrics/step_record.h"

namespace pptrain::metrics {

// "step 120/800  loss 1.6387  lr 3.000e-03  ...": a line of the log.
std::string format_line(const StepRecord& record, int64_t last_step);
std::string format_line(const EvalRecord& record);

// "SKIPPED: not finite": of a skipped step.
std::string skipped_text(const StepRecord& record);

// 1234567 -> "1,234,567".
std::string with_commas(int64_t value);

// "0:42", "5:12", "3:05:09", "12d 04h"; `seconds` is finite and not negative.
std::string duration_text(double seconds);

}  // namespace pptrain::metrics

// Points in time as text, UTC.
#pragma once

#include <chrono>
#include <optional>
#include <string>

namespace pptrain::metrics {

// "2026-01-31T23:59:59.123Z"
std::string utc_text(std::chrono::system_clock::time_point time);

// Reads that, and "2026-01-31 23:59:59 UTC". Nothing where it is neither.
std::optional<std::chrono::system_clock::time_point> parse_utc(const std::string& text);

}  // namespace pptrain::metrics

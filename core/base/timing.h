// Durations in seconds, and the middle of several measurements.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

namespace pptrain {

// Any duration, in seconds.
inline double in_seconds(std::chrono::duration<double> time) {
  return time.count();
}

inline std::chrono::milliseconds milliseconds_of(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

// Seconds from `begin` to now.
inline double seconds_since(std::chrono::steady_clock::time_point begin) {
  return in_seconds(std::chrono::steady_clock::now() - begin);
}

// Of at least one value, which single outliers do not move; if their number is even, the upper of the two in
// the middle.
inline double median(std::vector<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::ranges::nth_element(values, middle);
  return *middle;
}

}  // namespace pptrain

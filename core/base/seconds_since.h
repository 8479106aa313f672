#pragma once

#include <chrono>

namespace pptrain {

// Any duration, in seconds.
inline double in_seconds(std::chrono::duration<double> time) {
  return time.count();
}

// Seconds from `begin` to now.
inline double seconds_since(std::chrono::steady_clock::time_point begin) {
  return in_seconds(std::chrono::steady_clock::now() - begin);
}

}  // namespace pptrain

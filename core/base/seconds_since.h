#pragma once

#include <chrono>

namespace pptrain {

// Seconds from `begin` to now.
inline double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace pptrain
